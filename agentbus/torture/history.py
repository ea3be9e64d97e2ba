"""What the processes under torture write down themselves, a line at a time.

Each appends to a file of its own: neither its death nor the server's takes anything away. What was
invoked and never answered was cut off by a death, and may have happened or not.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_LONGEST = 2**20
INVOKE, OK, FAIL, UNKNOWN = "invoke", "ok", "fail", "unknown"


class Entry(NamedTuple):
    """One line: when (the machine's monotonic clock, in ns), who, what was done, how it stands, of what."""

    at: int
    who: str
    op: str
    phase: str
    of: dict[str, Any]


class Scribe:
    """Writes the history of one process."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _mend(self._file, path)

    def note(self, op: str, phase: str, *, at: int | None = None, **of: Any) -> None:
        """Append one line, in one write: what is in the file is whole, but for its last line."""
        when = time.monotonic_ns() if at is None else at
        line = json.dumps([when, op, phase, of], separators=(",", ":"), ensure_ascii=False)
        os.write(self._file, f"{line}\n".encode("utf-8", "surrogatepass"))


def _mend(file: int, path: pathlib.Path) -> None:
    """Take away the half of a line that a process left which was killed while it wrote."""
    size = os.fstat(file).st_size
    with path.open("rb") as written:
        # A kill tears a line only where it crosses from one page of memory to the next.
        start = max(0, size - _LONGEST)
        written.seek(start)
        tail = written.read()
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(file, start + tail.rfind(b"\n") + 1)


class Reader:
    """Reads the files of a directory while they grow; a file is named after who writes it."""

    def __init__(self, place: pathlib.Path) -> None:
        self._place = place
        self._offsets: dict[str, int] = {}
        self.entries: list[Entry] = []
        # Set to False by who takes what is new, and has no room for millions of lines.
        self.keeps = True

    def follow(self, who: str) -> None:
        """Read this process's file from now on."""
        self._offsets.setdefault(who, 0)

    def leave(self, who: str) -> list[Entry]:
        """Read a dead process's file for the last time."""
        return self._keep(self._of(who, self._offsets.pop(who)))

    def news(self) -> list[Entry]:
        """Return what was written since the last call, in the order of time."""
        return self._keep(
            entry for who, at in list(self._offsets.items()) for entry in self._of(who, at)
        )

    def _keep(self, found: Iterable[Entry]) -> list[Entry]:
        entries = sorted(found, key=lambda entry: entry.at)
        if self.keeps:
            self.entries += entries
        return entries

    def _of(self, who: str, at: int) -> Iterator[Entry]:
        path = self._place / who
        # Asked of every process at every glance: what has not grown is not opened.
        if not path.exists() or path.stat().st_size <= at:
            return
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if who in self._offsets:
            self._offsets[who] = at + len(whole)
        for line in whole.splitlines():
            when, op, phase, of = json.loads(line)
            yield Entry(when, who, op, phase, of)
