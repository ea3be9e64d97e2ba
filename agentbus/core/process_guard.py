"""Kills the programs that a process has started when that process dies, even by `kill -9`."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

# A shell script that reads lines until its stdin closes: `+` and a process id to add, or the whole
# list of ids. It then kills each process with the group that it leads. A truncated line is ignored.
_GUARDING = (
    'while read -r line; do case $line in +*) pids="$pids ${line#+}";; *) pids=$line;; esac; done;'
    ' for pid in $pids; do kill -s KILL -- "-$pid" || kill -s KILL "$pid"; done'
)


class ProcessGuard:
    """Kills process groups when this process dies: a small shell waits for the end of a pipe.

    It does not use PR_SET_PDEATHSIG, which exists only on Linux, and does not reach a program's children.
    It is thread-safe.
    """

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._pids: set[int] = set()
        self._lock = threading.Lock()

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program as the leader of a process group, guarded from the start."""
        with self._lock:
            self._ensure()
            try:
                # The child announces its own id: this process may be killed before Popen returns
                # the id.
                process = subprocess.Popen(command, preexec_fn=self._announce, **options)  # noqa: PLW1509
            except OSError:
                # The child announced itself, but could not run the command: withdraw its id.
                self._tell()
                raise
            self._pids.add(process.pid)
            return process

    def guard(self, pid: int) -> None:
        """Guard a running process, and the process group that it leads."""
        with self._lock:
            self._ensure()
            self._pids.add(pid)
            self._tell()

    def release(self, pid: int) -> None:
        """Stop guarding a process; call this before it is reaped, since its id may then be reused."""
        with self._lock:
            self._pids.discard(pid)
            self._tell()

    def close(self) -> None:
        """Kill all guarded processes, and stop guarding."""
        with self._lock:
            shell, self._shell = self._shell, None
            self._pids.clear()
        if shell is not None:
            shell.communicate()

    def _ensure(self) -> None:
        """Start the shell, or replace it if it was killed."""
        if self._shell is not None:
            if self._shell.poll() is None:
                return
            self._shell.communicate()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDING],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A new session protects the guard from signals to the terminal or to this process
            # group.
            start_new_session=True,
        )
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin.fileno()
        self._tell()

    def _announce(self) -> None:
        # This runs between fork and exec: other threads are gone, and locks that they held stay
        # locked.
        os.write(self._pipe, b"+%d\n" % os.getpid())

    def _tell(self) -> None:
        if self._shell is None:
            return
        try:
            os.write(self._pipe, " ".join(map(str, self._pids)).encode() + b"\n")
        except OSError:
            # The shell was killed.
            return
