"""What a flag guards: a file that takes no writer whose fencing token is lower than one it has seen."""

from __future__ import annotations

import fcntl
import os
import pathlib
import time


class Resource:
    """The guarded files, one for each flag, in a directory that all contenders share."""

    def __init__(self, place: pathlib.Path) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True)

    def write(self, flag: str, token: int | None) -> tuple[bool, int]:
        """Write, and return whether it was accepted, and when (monotonic, in ns), by the file's order.

        Who brings no token is always accepted: there is nothing by which to refuse.
        """
        file = os.open(self._place / flag, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            highest = int(os.pread(file, 32, 0) or b"0")
            if token is not None and token < highest:
                return False, time.monotonic_ns()
            if token is not None:
                os.pwrite(file, b"%020d" % token, 0)
            return True, time.monotonic_ns()
        finally:
            os.close(file)
