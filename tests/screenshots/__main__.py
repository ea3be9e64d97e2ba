"""Make pictures of every page of `agentbus web`, and of `agentbus top`, from a demo project.

With a directory, all of them go there: each page at 1280 and 390 pixels, light and dark. Without one, the
few that the documentation shows are made again, in docs/images. The project is on a server of its own,
whose clock always shows the same morning. Needs Debian's Chromium, which scripts/setup browser installs.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from tests.screenshots import pictures
from tests.screenshots.demo import demo

_DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "images"


def main() -> int:
    """Make the pictures, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/screenshots", description=__doc__)
    parser.add_argument("directory", nargs="?", type=pathlib.Path, help="where all pictures go")
    parser.add_argument(
        "--only", metavar="PAGE", action="append", help="only this page; repeatable"
    )
    given = parser.parse_args()
    # A short path: the server's socket lies below it.
    with tempfile.TemporaryDirectory(prefix="pictures-", dir="/tmp") as place:
        home = pathlib.Path(place)
        with demo(home) as project:
            if given.directory is None:
                made = pictures.for_docs(project, home, _DOCS)
            else:
                made = pictures.of_all(project, home, given.directory, given.only)
    for path in made:
        sys.stdout.write(f"{path.stat().st_size // 1000:6} kB  {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
