"""Keeps processes under torture from outliving the process that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

# Reads process ids until its stdin is closed, and kills the last.
_GUARDING = 'while read -r line; do pid=$line; done; [ -z "$pid" ] || kill -9 "$pid"'


def end_with_parent() -> None:
    """End this process when its parent ends: the parent's end of our stdin closes then."""

    def _wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=_wait, daemon=True).start()


class ProcessGuard:
    """Kills another program when this process ends, even by kill -9."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Stop guarding, and kill the process that is still guarded."""
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def guard(self, pid: int) -> None:
        """Guard this process alone from now on."""
        self._shell = self._shell or subprocess.Popen(
            ["/bin/sh", "-c", _GUARDING],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A Ctrl-C, which ends all processes of a terminal, must not end this one first.
            process_group=0,
        )
        self._tell(str(pid))

    def release(self) -> None:
        """Guard nothing: the process has ended, and its id may be reused."""
        self._tell("")

    def _tell(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            # Guarding only tidies up: without it all goes on.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._shell.stdin.fileno(), f"{line}\n".encode())
