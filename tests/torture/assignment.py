"""The child's side of a process under torture: its assignment, and how far it may go."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
from typing import Any, NamedTuple

from tests.torture.history import Scribe


class Assignment(NamedTuple):
    """What a process is to do, as one word of its command line; `options` are the mode's own."""

    name: str
    kind: str
    url: str
    project: str
    place: str
    seed: int
    allowed: int
    over: bool
    options: dict[str, Any]

    @property
    def history(self) -> pathlib.Path:
        """The file that this process and its predecessors write."""
        return pathlib.Path(self.place) / "histories" / self.name

    def scribe(self) -> Scribe:
        """Open this process's history."""
        return Scribe(self.history)


class Allowance:
    """How far a process may go: a number that its parent raises, until it is over."""

    def __init__(self, number: int = 0, *, over: bool = False) -> None:
        self.number, self.over = number, over
        self._changed = threading.Condition()

    def change(self, number: int, *, over: bool = False) -> None:
        """Take what the parent said last."""
        with self._changed:
            self.number, self.over = number, over
            self._changed.notify_all()

    def reaches(self, number: int) -> bool:
        """Wait until the limit has reached a number; False if it is over before."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self.number >= number)
            return self.number >= number

    def follow(self) -> None:
        """Read the parent's lines from stdin in a thread; when the parent ends, this process ends."""
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        rest = b""
        while chunk := os.read(0, 4096):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                # Only the last line counts.
                number, over = map(int, lines[-1].split())
                self.change(number, over=bool(over))
        os.kill(os.getpid(), signal.SIGKILL)


def assigned() -> tuple[Assignment, Allowance]:
    """Return this process's assignment and its limit; from now on it ends with its parent."""
    assignment = Assignment(*json.loads(sys.argv[-1]))
    limit = Allowance(assignment.allowed, over=assignment.over)
    limit.follow()
    return assignment, limit
