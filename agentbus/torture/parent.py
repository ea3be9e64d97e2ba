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
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHING],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # What ends all of a terminal at once must not end this first.
            process_group=0,
        )

    def close(self) -> None:
        """End the watch, and whoever it is still kept on."""
        with contextlib.suppress(BrokenPipeError):
            self._shell.communicate()

    def keep_on(self, pid: int | None) -> None:
        """Watch this process alone from now on; None once it was ended, before its number is another's."""
        assert self._shell.stdin is not None
        # Without the watch all goes on: it only tidies up.
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write(b"%d\n" % pid if pid is not None else b"\n")
            self._shell.stdin.flush()
