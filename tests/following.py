"""Follows a piece of data through the package: which files hold it, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests.source_tree import PACKAGE

# How deep a value is searched: a server nests a task in the entry of a stream of a priority of a reply.
_DEPTH = 8
_COMMANDS = PACKAGE.parent / "commands"


class Trail:
    """The files whose functions hold `mark`, in order, from call to call, until the data is sent."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._sent = False
        self.held: list[str] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the calls of this thread in the block."""
        self._sent = False
        before = sys.getprofile()
        sys.setprofile(self._seen)
        try:
            yield
        finally:
            sys.setprofile(before)

    def stop(self) -> None:
        """Record nothing more: the data has arrived."""
        self._sent = True

    def path(self, without: Container[str] = ()) -> list[str]:
        """Return the files that pass the data on, without those that give it back to where it came from."""
        passed: list[str] = []
        for file in self.held:
            if file in without:
                continue
            if file in passed:
                del passed[passed.index(file) + 1 :]
            else:
                passed.append(file)
        return passed

    def _seen(self, frame: FrameType, event: str, found: Any) -> None:
        if self._sent:
            return
        if event == "c_call":
            if _sends(found) and self._frame_holds(frame):
                self._note(frame)
                self._sent = True
        elif event == "call":
            if frame.f_back is not None:
                self._note(frame.f_back)
            self._note(frame)
        elif event == "return":
            self._note(frame, found)

    def _note(self, frame: FrameType, returned: object = None) -> None:
        file = _file(frame)
        if file is None or (self.held and self.held[-1] == file):
            return
        if self._frame_holds(frame) or self._holds(returned):
            self.held.append(file)

    def _frame_holds(self, frame: FrameType) -> bool:
        return any(self._holds(value) for name, value in frame.f_locals.items() if name != "self")

    def _holds(self, value: object, depth: int = _DEPTH) -> bool:
        if isinstance(value, str):
            return self._mark in value
        if isinstance(value, bytes):
            return self._mark.encode() in value
        return depth > 0 and any(self._holds(part, depth - 1) for part in _parts(value))


def _sends(function: object) -> bool:
    of = type(getattr(function, "__self__", None))
    return of.__module__ in {"_socket", "socket"} and getattr(function, "__name__", "") == "send"


def _file(frame: FrameType) -> str | None:
    """Return the file of a frame, as the page names it; None for other programs' files."""
    name = frame.f_code.co_filename
    for folder, shown in ((PACKAGE, ""), (_COMMANDS, "commands/")):
        if name.startswith(f"{folder}/"):
            return shown + name.removeprefix(f"{folder}/")
    return None


def _parts(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)) or type(value).__name__ == "Row":
        return list(value)
    kind = type(value)
    if not kind.__module__.startswith("agentbus."):
        return ()
    # A value is its slots. What other objects have as state, they do not pass on.
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    return [getattr(value, name, None) for name in slots if not name.startswith("__")]
