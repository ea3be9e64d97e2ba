"""What must hold of every command line, whatever others wrote: it ends soon, and says so properly."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from tests import inprocess
from tests.inprocess import Done

CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 130}
# What stands in the environment and in URLs of these tests, and must be printed nowhere.
SECRET = "hunter2-is-secret"
_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_HIDDEN = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}


def mistakes(done: Done, argv: list[str], *, exact: bool = False) -> list[str]:
    """Return what is wrong with how a line ended; `exact` output is a value as it was stored."""
    found = []
    said, out = done.err.decode("utf-8", "replace"), done.out.decode("utf-8", "surrogateescape")
    if done.code not in CODES:
        found.append(f"exit code {done.code}")
    found += [word for word in ("Traceback", "unexpectedly", "is a bug") if word in said]
    if SECRET in said or SECRET in out:
        found.append("a secret is printed")
    for line in said.splitlines():
        if not _is_plain(line):
            found.append(f"stderr is not plain: {line!a}")
    if "--json" in argv:
        found += [f"no JSON: {line!a}" for line in out.splitlines() if not _is_json(line)]
    elif not exact:
        found += [
            f"stdout is not plain: {line!a}" for line in out.split("\n") if not _is_plain(line)
        ]
    if done.code in {1, 2, 3, 4, 5, 7, 8} and argv[0] != "hold" and not said and not out:
        found.append("nothing is said")
    return found


def _is_plain(line: str) -> bool:
    if line.isascii() and line.isprintable():
        return True
    return not any(
        unicodedata.category(each) in _HIDDEN or unicodedata.bidirectional(each) in _TURNING
        for each in line
    )


def _is_json(line: str) -> bool:
    def constant(name: str) -> Any:
        raise ValueError(name)

    try:
        json.loads(line, parse_constant=constant)
    except ValueError:
        return False
    return True


def run(argv: list[str], stdin: bytes = b"") -> Done:
    """Run a line in this process."""
    return inprocess.run(*argv, stdin=stdin)
