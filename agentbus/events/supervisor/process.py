"""Worker processes as their supervisor sees them: started anew, listened to, stopped, killed, reaped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from agentbus.events.supervisor.child import STOP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A fresh interpreter: what was opened here is not inherited, and nothing secret is in its arguments.
_PROGRAM = (
    "import sys, json\n"
    "job = json.loads(sys.stdin.buffer.raw.readline())\n"
    "sys.path[:] = job['path']\n"
    "from agentbus.events.supervisor.child import work\n"
    "sys.exit(work(job))\n"
)
_PIECE = 65536


class WorkerProcess:
    """A process that does a job; `label` is how the system's list of processes shows it.

    `beat_at` is when it last said something, by this process's monotonic clock, `ready` whether it works
    yet, `error` what it told of its end, and `warnings` what it said since somebody took them.
    """

    def __init__(self, label: str, job: Mapping[str, Any], path: Sequence[str]) -> None:
        self.ready = False
        self.stopping = False
        self.silent = False
        self.error: str | None = None
        self.consumers: list[tuple[str, str]] | None = None
        self.warnings: list[str] = []
        self.owner = str(job.get("owner"))
        self._rest = b""
        self._report, theirs = os.pipe()
        os.set_blocking(self._report, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, ascii(label)[1:-1]],
                stdin=subprocess.PIPE,
                pass_fds=(theirs,),
                # What the handler starts is of its group, and ends with it. Ctrl-C is for the supervisor.
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._report)
            raise
        finally:
            os.close(theirs)
        self.started = self.beat_at = time.monotonic()
        told = {**job, "report": theirs, "parent": os.getpid(), "path": list(path)}
        self._tell(json.dumps(told).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return what can be read when it has said something, or has ended."""
        return self._report

    @property
    def lived(self) -> float:
        """How many seconds it ran, as far as it said so itself."""
        return self.beat_at - self.started

    def listen(self) -> bool:
        """Take in what it said; False when it can say nothing more."""
        heard = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._report, _PIECE):
                heard += piece
            self._take(heard)
            return False
        self._take(heard)
        return True

    def _take(self, heard: bytes) -> None:
        if not heard:
            return
        # Whoever speaks lives. The clock is read now: what we slept through is no silence of its own.
        self.beat_at = time.monotonic()
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            if line:
                self._note(json.loads(line))

    def _note(self, said: dict[str, Any]) -> None:
        self.ready = self.ready or "ready" in said
        self.error = said.get("error", self.error)
        if "warning" in said:
            self.warnings.append(said["warning"])
        if "consumers" in said:
            self.consumers = [(name, stream) for name, stream in said["consumers"]]

    def stop(self) -> None:
        """Tell it to end after the event in hand."""
        self.stopping = True
        self._tell(STOP)

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # It may be dead by now.
        with contextlib.suppress(OSError):
            self._process.stdin.write(line)

    def kill(self) -> None:
        """End it with what it started, at once."""
        # It is not reaped yet: its number is nobody else's.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Return its exit code, below 0 the signal that ended it; None while it runs."""
        if self._process.returncode is None:
            if not hasattr(os, "waitid"):
                return self._process.poll()
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                if os.waitid(os.P_PID, self.pid, options) is None:
                    return None
            except ChildProcessError:
                # Somebody else in this program waits for all children, and took the code with it.
                return self._process.poll()
            self.kill()
            self._process.wait()
        return self._process.returncode

    def end(self) -> None:
        """Kill it, wait until it is dead, and close what led to it."""
        self.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close what led to one that has ended."""
        self.listen()
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._report)
