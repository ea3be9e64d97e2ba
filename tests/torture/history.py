"""Histories: what each process under torture writes down about its own operations, a line each.

Each process appends to its own file, so that neither its death nor the server's takes anything away. An
operation that was invoked and never answered was cut off by a death, and may have happened or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentbus.core.errors import AgentBusError, OutcomeUnknown

_LONGEST = 2**20
INVOKE, OK, FAIL, UNKNOWN = "invoke", "ok", "fail", "unknown"
# The operation of a process that kills itself, since it was made to.
DIES = "dies"


class HistoryEntry(NamedTuple):
    """One line: when (monotonic clock, in ns), by which process, operation, phase, and its details."""

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
        """Append one line, in one write: only the last line of a file can be incomplete."""
        when = time.monotonic_ns() if at is None else at
        line = json.dumps([when, op, phase, of], separators=(",", ":"), ensure_ascii=False)
        os.write(self._file, f"{line}\n".encode("utf-8", "surrogatepass"))

    def die(self) -> None:
        """Kill this process with -9; by its history its parent knows that it was made to."""
        self.note(DIES, OK)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def asking(
        self, op: str, refused: type[AgentBusError] | tuple[()] = AgentBusError, **of: Any
    ) -> Iterator[dict[str, Any]]:
        """Note an operation and its outcome; the block may put its details, or its `phase`, into the dict.

        An error of the library is raised again. If it is a `refused`, and not `OutcomeUnknown`, the
        operation has failed; otherwise its outcome is unknown.
        """
        answer: dict[str, Any] = {}
        self.note(op, INVOKE, **of)
        try:
            yield answer
        except AgentBusError as error:
            sure = isinstance(error, refused) and not isinstance(error, OutcomeUnknown)
            of |= {"error": type(error).__name__, "why": str(error)[:300]}
            self.note(op, FAIL if sure else UNKNOWN, **of)
            raise
        self.note(op, answer.pop("phase", OK), **{**of, **answer})


def _mend(file: int, path: pathlib.Path) -> None:
    """Remove the incomplete line of a process that was killed while it wrote."""
    size = os.fstat(file).st_size
    with path.open("rb") as written:
        # A kill tears a line only where it crosses from one page of memory to the next.
        start = max(0, size - _LONGEST)
        written.seek(start)
        tail = written.read()
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(file, start + tail.rfind(b"\n") + 1)


class HistoryReader:
    """Reads the files of a directory while they grow; a file has the name of its process."""

    def __init__(self, place: pathlib.Path) -> None:
        self._place = place
        self._offsets: dict[str, int] = {}
        self.entries: list[HistoryEntry] = []
        # False if what is new is all that is used, and millions of lines would not fit into memory.
        self.keeps = True

    def follow(self, who: str) -> None:
        """Read this process's file from now on."""
        self._offsets.setdefault(who, 0)

    def news(self) -> list[HistoryEntry]:
        """Return what was written since the last call, in the order of time."""
        found = [entry for who in self._offsets for entry in self._of(who)]
        found.sort(key=lambda entry: entry.at)
        if self.keeps:
            self.entries += found
        return found

    def _of(self, who: str) -> Iterator[HistoryEntry]:
        path, at = self._place / who, self._offsets[who]
        # Done for every process at every tick: a file that has not grown is not opened.
        if not path.exists() or path.stat().st_size <= at:
            return
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[who] = at + len(whole)
        for line in whole.splitlines():
            when, op, phase, of = json.loads(line)
            yield HistoryEntry(when, who, op, phase, of)


def read_history(path: pathlib.Path) -> list[HistoryEntry]:
    """Return what a process and its predecessors have written so far."""
    reader = HistoryReader(path.parent)
    reader.follow(path.name)
    return reader.news()


# The name in the reference.
Reader = HistoryReader
