"""Run the benchmarks named (all by default), and print their figures beside a baseline of the same run.

With --page, they run in one go, and their figures are written into a page with pictures, and as data into
the directory beside it that has the page's name. A machine that is busy with other work is refused without
--loaded, and the page says how busy it was. With --update, the figures of those named replace their former
ones on such a page; --peers does so with the other task queues, which it installs, on the page of the
documentation. --again writes the page anew from its data.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

from scripts.benchmarks import _load, _page

PAGE = pathlib.Path("docs/explanation/performance.md")


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_page.NAMES))
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE.md", help="write a page")
    parser.add_argument("--update", type=pathlib.Path, metavar="FILE.md", help="replace figures")
    parser.add_argument(
        "--peers", action="store_true", help=f"the same as: peers --loaded --update {PAGE}"
    )
    parser.add_argument("--again", type=pathlib.Path, metavar="FILE.md", help="write it anew")
    parser.add_argument("--size", choices=_page.SIZES, help="page for a page, else full")
    parser.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="only see that all works"
    )
    parser.add_argument("--loaded", action="store_true", help="measure a page though others work")
    given = parser.parse_args()
    if given.peers:
        given.names, given.update, given.loaded = ["peers"], PAGE, True
    if unknown := set(given.names) - set(_page.NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    names = [name for name in _page.NAMES if name in given.names] or _page.NAMES
    if given.again:
        _page.write(given.again)
    elif given.page or given.update:
        share = _load.busy()
        if share > _load.QUIET and not given.loaded:
            parser.error(
                f"other programs use {share:.0%} of the processors: a page is measured on a machine that is"
                f" at most {_load.QUIET:.0%} busy. Stop them, or give --loaded"
            )
        page = _page.measured(names, given.size or "page")
        if given.update:
            page = _page.updated(_page.loaded(given.update), page)
        _page.save(page, given.update or given.page)
        return 1 if page.failed else 0
    else:
        for name in names:
            words = [sys.executable, "-m", f"scripts.benchmarks.{name}"]
            subprocess.run([*words, "--size", given.size or _page.FULL], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
