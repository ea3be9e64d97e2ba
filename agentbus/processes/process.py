"""A process that a parent starts, monitors, stops, kills and reaps."""

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

# Start a fresh interpreter instead of a fork: it inherits no open files, locks or threads, and its
# arguments hold no secrets.
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
    """A process that calls the function `run`, given as `module:function`, with a job as JSON.

    `label` is its name in the system's process list. `beat_at` is the time of its last write, by this
    process's monotonic clock; `ready` is whether it has begun its work; `error` is the reason of its end,
    by its own report, and `own` whether its configuration is wrong; `code` is its exit code, as `ended`
    returns it; `warnings` are its reports since they were last cleared; `said` is its last report.
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
                # Processes that the handler starts are in this session's group and end with it.
                # Ctrl-C reaches only the supervisor.
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._report)
            raise
        finally:
            os.close(theirs)
        self.started = self.beat_at = time.monotonic()
        # Search for modules in the current directory, and on this process's path.
        path = list(dict.fromkeys([os.getcwd(), *(each for each in sys.path if each)]))
        job = {**job, "run": run, "report": theirs, "parent": os.getpid(), "path": path}
        self._send(json.dumps(job).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived(self) -> float:
        """The seconds between the process's start and its last heartbeat."""
        return self.beat_at - self.started

    def listen(self) -> bool:
        """Read the process's reports; return False at the end of the pipe."""
        heard, more = b"", False
        try:
            while piece := os.read(self._report, _PIECE):
                heard += piece
        except BlockingIOError:
            more = True
        if heard:
            # Read the clock now, so that a pause of this process does not look like a missing
            # heartbeat.
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
        """Return the descriptor that becomes readable when the process has written or ended."""
        return self._report

    def stop(self) -> None:
        """Ask the process to end after its current work."""
        self._send(STOP)

    def signal(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        # The process has not been reaped, so its id cannot have been reused.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # The process may have ended.
        with contextlib.suppress(OSError):
            self._process.stdin.write(line)

    def kill(self) -> None:
        """Kill the process with all processes that it started."""
        # The process has not been reaped, so its id cannot have been reused.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Return the process's exit code, negative for a signal; None while it is running."""
        if self._process.returncode is None:
            if not hasattr(os, "waitid"):
                return self._process.poll()
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                if os.waitid(os.P_PID, self.pid, options) is None:
                    return None
            except ChildProcessError:
                # Other code in this program waits for all children, and has taken the exit code.
                return self._process.poll()
            self.kill()
            self._process.wait()
        return self._process.returncode

    def end(self) -> None:
        """Kill the process, wait for its end, and close its pipes."""
        self.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self.listen()
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._report)
