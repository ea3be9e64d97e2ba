"""The pipe from a process to the parent that monitors it."""

from __future__ import annotations

import contextlib
import json
import os
import time


class ReportPipe:
    """The pipe to the parent: each report is a line of JSON, each heartbeat an empty line.

    Data that does not fit into a full pipe is dropped: its unread lines already show that this process is
    alive. Each heartbeat also touches `file`, for programs that monitor this process.
    """

    def __init__(self, descriptor: int, every: float, file: str | None = None) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._every = every
        self._file = file
        self._last = float("-inf")

    def beat(self) -> None:
        """Send a heartbeat, unless the last one was less than `every` seconds ago."""
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._write(b"\n")
            self._touch()

    def _touch(self) -> None:
        if self._file is None:
            return
        # A full disk must not end the work; the pipe carries the heartbeat anyway.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)

    def send(self, **fields: object) -> None:
        self._write(json.dumps(fields).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line)
