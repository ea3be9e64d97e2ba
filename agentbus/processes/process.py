"""A process that a parent keeps: started, listened to, stopped, killed, reaped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from agentbus.processes.child import STOP

# A fresh interpreter, not a fork: it inherits no open files, no locks and no threads, and its arguments
# hold no secret.
_PROGRAM = (
    "import sys, json\n"
    "job = json.loads(sys.stdin.buffer.raw.readline())\n"
    "sys.path[:] = job['path']\n"
    "from importlib import import_module\n"
    "module, _, function = job['run'].partition(':')\n"
    "sys.exit(getattr(import_module(module), function)(job))\n"
)
_PIECE = 65536


class WorkerProcess:
    """A process that calls the function `run`, as `module:function`, with a job, which must be JSON.

    `label` is its name in the system's list of processes. `beat_at` is when it last wrote, by this
    process's monotonic clock; `ready` whether it does its work; `error` why it ended, by its own report,
    and `own` whether its configuration is wrong; `code` its exit code, as `ended` returns it; `warnings`
    what it reported since they were last cleared; `said` its last report.
    """

    def __init__(self, label: str, run: str, job: Mapping[str, Any]) -> None:
        self.ready = False
        self.silent = False
        self.error: str | None = None
        self.own = False
        self.code: int | None = None
        self.said: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._rest = b""
        self._report, theirs = os.pipe()
        os.set_blocking(self._report, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, ascii(label)[1:-1]],
                stdin=subprocess.PIPE,
                pass_fds=(theirs,),
                # The handler's processes are in its group, and end with it. Ctrl-C is for the supervisor.
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._report)
            raise
        finally:
            os.close(theirs)
        self.started = self.beat_at = time.monotonic()
        # Modules are found in the current directory, and where this process finds them.
        path = list(dict.fromkeys([os.getcwd(), *(each for each in sys.path if each)]))
        job = {**job, "run": run, "report": theirs, "parent": os.getpid(), "path": path}
        self._send(json.dumps(job).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived(self) -> float:
        """The seconds from its start to its last heartbeat."""
        return self.beat_at - self.started

    def listen(self) -> bool:
        """Read what it wrote; False at the end of the pipe."""
        heard, more = b"", False
        try:
            while piece := os.read(self._report, _PIECE):
                heard += piece
        except BlockingIOError:
            more = True
        if heard:
            # The clock is read now: our own pauses are not a missing heartbeat of the process.
            self.beat_at = time.monotonic()
            *lines, self._rest = (self._rest + heard).split(b"\n")
            for line in lines:
                if line:
                    self._note(json.loads(line))
        return more

    def _note(self, said: dict[str, Any]) -> None:
        self.ready = self.ready or "ready" in said
        self.error = said.get("error", self.error)
        self.own = said.get("own", self.own)
        if "warning" in said:
            self.warnings.append(said["warning"])
        else:
            self.said = said

    def fileno(self) -> int:
        """Return the descriptor that can be read when it has written or ended."""
        return self._report

    def stop(self) -> None:
        """Ask it to end after its current work."""
        self._send(STOP)

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        # It is not reaped yet: its id is not used again.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # It may have ended.
        with contextlib.suppress(OSError):
            self._process.stdin.write(line)

    def kill(self) -> None:
        """Kill it with all processes that it started."""
        # It is not reaped yet: its id is not used again.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self._process.returncode is None:
            if not hasattr(os, "waitid"):
                return self._process.poll()
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                if os.waitid(os.P_PID, self.pid, options) is None:
                    return None
            except ChildProcessError:
                # Other code of this program waits for all children, and took the exit code.
                return self._process.poll()
            self.kill()
            self._process.wait()
        return self._process.returncode

    def end(self) -> None:
        """Kill it, wait for its end, and close its pipes."""
        self.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self.listen()
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._report)
