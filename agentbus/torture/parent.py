"""A process under torture never outlives whoever spawned it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

# It reads numbers of processes until nobody is left who could write one, and kills the last one named.
_WATCHING = 'while read -r line; do pid=$line; done; [ -z "$pid" ] || kill -9 "$pid"'


def end_with_parent() -> None:
    """Have this process end when whoever spawned it does: their end of our stdin closes with them."""

    def _wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=_wait, daemon=True).start()


class Watch:
    """Has a process that cannot see to it itself end when this one does, even by a kill -9."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the watch, and whoever it is still kept on."""
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def keep_on(self, pid: int) -> None:
        """Watch this process alone from now on."""
        self._shell = self._shell or subprocess.Popen(
            ["/bin/sh", "-c", _WATCHING],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # What ends all of a terminal at once must not end this first.
            process_group=0,
        )
        self._tell(str(pid))

    def leave(self) -> None:
        """Watch nobody: it was ended, and its number will be another's."""
        self._tell("")

    def _tell(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            # Without the watch all goes on: it only tidies up.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._shell.stdin.fileno(), f"{line}\n".encode())
