"""The output of a program that runs a task: lines on stderr, prefixed by the task, and its end."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

from agentbus.commands._output import plain
from agentbus.core.settings import environment

# Bytes of output that are kept of each stream while the program runs, and of both in a dead letter.
_TAIL = 16 * 1024
# Bytes of a line without an end that are held back, and of a run's output that a group shows.
_LINE, _GROUP = 16 * 1024, 1 << 20
_LOCK = threading.Lock()
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def on_github() -> bool:
    """Return whether the log is read by GitHub Actions."""
    return environment().get("GITHUB_ACTIONS") == "true"


class ProgramOutput:
    """The output of one run: writes each line with its task in front, and keeps the end of each stream.

    On GitHub Actions the lines are written as one group when the run has ended. Without `write`, nothing is
    written.
    """

    def __init__(self, task: str, write: Callable[[bytes], None] | None) -> None:
        self._task = task
        self._write = write
        self._grouped = bytearray() if write is not None and on_github() else None
        self._open = {"stdout": bytearray(), "stderr": bytearray()}
        self._tails = {"stdout": bytearray(), "stderr": bytearray()}

    def feed(self, stream: str, piece: bytes) -> None:
        """Take a piece of a stream."""
        tail = self._tails[stream]
        tail += piece
        del tail[:-_TAIL]
        if self._write is None:
            return
        line = self._open[stream]
        line += piece
        end = line.rfind(b"\n") + 1
        if not end and len(line) > _LINE:
            end = len(line)
        if end:
            self._show(bytes(line[:end]))
            del line[:end]

    def close(self) -> None:
        """Write what is left: lines without an end."""
        for line in self._open.values():
            if line:
                self._show(bytes(line))
                line.clear()

    def show_group(self, title: str) -> None:
        """Write the lines of the run as a group of GitHub Actions, if it reads the log."""
        if self._grouped is None or self._write is None:
            return
        head = f"::group::{escaped(title)}\n".encode(errors="backslashreplace")
        with _LOCK:
            self._write(head + bytes(self._grouped) + b"::endgroup::\n")
        self._grouped.clear()

    def last_line(self) -> str:
        """Return the last line of stderr, or of stdout if stderr is empty."""
        for stream in ("stderr", "stdout"):
            text = self._text(stream, _TAIL).rstrip()
            if text:
                return text.rpartition("\n")[2].strip()
        return ""

    def tail(self) -> str:
        """Return the end of both streams, of 16 KiB in all, for a dead letter."""
        half = _TAIL // 2
        kept = {name: len(tail) for name, tail in self._tails.items()}
        room = {
            "stdout": _TAIL - min(kept["stderr"], half),
            "stderr": _TAIL - min(kept["stdout"], half),
        }
        texts = {name: self._text(name, room[name]) for name in kept}
        if texts["stdout"] and texts["stderr"]:
            return f"stdout:\n{texts['stdout']}\nstderr:\n{texts['stderr']}"
        return texts["stdout"] or texts["stderr"]

    def _text(self, stream: str, room: int) -> str:
        return bytes(self._tails[stream][-room:]).decode("utf-8", "replace").strip("\n")

    def _show(self, data: bytes) -> None:
        text = data.decode("utf-8", "backslashreplace")
        lines = (f"{self._task} | {_shown(line)}\n" for line in text.removesuffix("\n").split("\n"))
        shown = "".join(lines).encode(errors="backslashreplace")
        if self._grouped is not None:
            self._grouped += shown
            del self._grouped[:-_GROUP]
        elif self._write is not None:
            with _LOCK:
                self._write(shown)


def _shown(line: str) -> str:
    """Return a line with its colours, which end with it, and other control characters escaped."""
    parts = _COLOUR.split(line.removesuffix("\r"))
    shown = "".join(part if at % 2 else plain(part) for at, part in enumerate(parts))
    return shown + "\x1b[0m" * (len(parts) > 1)


def to_stderr(data: bytes) -> None:
    """Write to stderr; a closed stderr is not an error."""
    try:
        os.write(2, data)
    except OSError:
        return


def escaped(text: str) -> str:
    """Return text as the data of a workflow command of GitHub Actions."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
