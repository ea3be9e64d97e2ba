"""Kills the programs that a process has started when that process dies, even by `kill -9`."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

# Reads lines until its stdin is closed: `+` and a process id, or all ids. Then it kills each, with the
# process group that it leads. A line that was cut off changes nothing.
_GUARDING = (
    'while read -r line; do case $line in +*) pids="$pids ${line#+}";; *) pids=$line;; esac; done;'
    ' for pid in $pids; do kill -s KILL -- "-$pid" || kill -s KILL "$pid"; done'
)


class ProcessGuard:
    """Kills process groups when this process dies: a small shell waits for the end of a pipe.

    Not PR_SET_PDEATHSIG, which only Linux has, and which does not reach the children of a program.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._pids: set[int] = set()
        self._lock = threading.Lock()

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program that leads its process group, and guard it from before it runs."""
        with self._lock:
            self._ensure()
            try:
                # The program announces itself: this process may be killed before it knows the id.
                process = subprocess.Popen(command, preexec_fn=self._announce, **options)  # noqa: PLW1509
            except OSError:
                # The processes that announced themselves have ended.
                self._tell()
                raise
            self._pids.add(process.pid)
            return process

    def guard(self, pid: int) -> None:
        """Guard a process that runs already, and the group that it leads."""
        with self._lock:
            self._ensure()
            self._pids.add(pid)
            self._tell()

    def release(self, pid: int) -> None:
        """Guard a process no longer; to be called before it is reaped, and its id reused."""
        with self._lock:
            self._pids.discard(pid)
            self._tell()

    def close(self) -> None:
        """Kill what is still guarded, and stop guarding."""
        with self._lock:
            shell, self._shell = self._shell, None
            self._pids.clear()
        if shell is not None:
            shell.communicate()

    def _ensure(self) -> None:
        """Start the shell, also in place of one that somebody killed."""
        if self._shell is not None:
            if self._shell.poll() is None:
                return
            self._shell.communicate()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDING],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A signal to all processes of a terminal or of our group must not end this one first.
            start_new_session=True,
        )
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin.fileno()
        self._tell()

    def _announce(self) -> None:
        # Between fork and exec, where other threads do not exist, and their locks stay taken.
        os.write(self._pipe, b"+%d\n" % os.getpid())

    def _tell(self) -> None:
        if self._shell is None:
            return
        try:
            os.write(self._pipe, " ".join(map(str, self._pids)).encode() + b"\n")
        except OSError:
            # Somebody killed the shell.
            return
