"""A supervisor's processes: started, listened to, stopped, killed, reaped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import UsageError
from agentbus.events.declare import chosen
from agentbus.events.supervisor.child import STOP
from agentbus.events.supervisor.options import RELAY, heartbeat_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.core.signals import StopEvent
    from agentbus.events.ledger import Ledger
    from agentbus.events.supervisor.options import ProcessOptions, SupervisedJob
    from agentbus.queues.runner import BlockingBus

# A fresh interpreter: it inherits no open files, and its arguments hold no secret.
_PROGRAM = (
    "import sys, json\n"
    "job = json.loads(sys.stdin.buffer.raw.readline())\n"
    "sys.path[:] = job['path']\n"
    "from agentbus.events.supervisor.child import work\n"
    "sys.exit(work(job))\n"
)
_PIECE = 65536
_GLANCE = 0.05
_SETTINGS = ("agent", "project", "url", "json", "log_level", "deadline", "max_body")


class WorkerProcess:
    """A process that does a job; `label` is its name in the system's list of processes.

    `beat_at` is when it last wrote, by this process's monotonic clock; `ready` whether its role runs;
    `error` why it ended, by its own report, and `own` whether its configuration is wrong; `code` its exit
    code, as `ended` returns it; `warnings` what it reported since they were last cleared.
    """

    def __init__(self, label: str, job: Mapping[str, Any]) -> None:
        self.ready = False
        self.silent = False
        self.error: str | None = None
        self.own = False
        self.code: int | None = None
        self.consumers: dict[str, str] | None = None
        self.warnings: list[str] = []
        self.owner = str(job.get("owner"))
        self._heartbeat = job.get("heartbeat")
        self._rest = b""
        self._report, theirs = os.pipe()
        os.set_blocking(self._report, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, ascii(label)[1:-1]],
                stdin=subprocess.PIPE,
                pass_fds=(theirs,),
                # What the handler starts is in its group, and ends with it. Ctrl-C is for the supervisor.
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
        job = {**job, "report": theirs, "parent": os.getpid(), "path": path}
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
        self.consumers = said.get("consumers", self.consumers)
        if "warning" in said:
            self.warnings.append(said["warning"])

    def stop(self) -> None:
        """Ask it to end after its current event."""
        self._send(STOP)

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
        if self._heartbeat is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._heartbeat)


class ProcessFactory:
    """Starts processes for the consumers of a module, the relay and jobs, and one that lists consumers."""

    def __init__(
        self,
        module: str | None,
        ledger: Ledger,
        bus: BlockingBus,
        silence: float,
        options: ProcessOptions,
    ) -> None:
        self.module = module
        self._ledger = ledger
        self._bus = bus
        self._silence = silence
        self._options = options

    def worker(self, name: str, supervised: SupervisedJob | None = None) -> WorkerProcess:
        """Start the process of a consumer, the relay or a job. Raises `OSError`."""
        job = self._job(name, self._bus.runner.scope.token())
        if supervised is not None:
            job |= {"target": supervised.target, "options": dict(supervised.options)}
        if self._options.heartbeat_dir is not None:
            job["heartbeat"] = heartbeat_file(self._options.heartbeat_dir, name)
        label = name if supervised or name == RELAY else f"consumer {name}"
        return WorkerProcess(label, job)

    def declared(
        self, only: str | None, within: float, stopped: StopEvent
    ) -> dict[str, str] | None:
        """Return the stream of each consumer by its name; None if `stopped` was set meanwhile.

        The module is loaded in its own process. Raises `UsageError`.
        """
        assert self.module is not None
        worker = WorkerProcess(f"look {self.module}", self._job(None, None))
        try:
            _listen_to_all(worker, time.monotonic() + within, stopped)
        finally:
            worker.end()
        if stopped.is_set():
            return None
        if worker.consumers is None:
            raise UsageError(
                worker.error
                or f"the module {self.module!r} ended its process, or took over {within:g} s to load",
                hint=None if worker.error else "correct it",
            )
        return chosen(worker.consumers, self.module, only)

    def _job(self, consumer: str | None, owner: str | None) -> dict[str, Any]:
        settings = self._bus.runner.settings
        return {
            "module": self.module,
            "consumer": consumer,
            "target": None,
            "heartbeat": None,
            "owner": owner,
            "database": self._ledger.engine.url.render_as_string(hide_password=False),
            "prefix": self._ledger.prefix,
            "schema": self._ledger.tables.lease.schema,
            "bus": {**{name: getattr(settings, name) for name in _SETTINGS}, "sources": {}},
            "timeout": self._silence,
            "process": self._options.fields(),
        }


def _listen_to_all(worker: WorkerProcess, until: float, stopped: StopEvent) -> None:
    """Listen until a process has listed its consumers or ended, or its time is up."""
    while not stopped.is_set() and time.monotonic() < until:
        # Its end of the pipe may stay open in a process that the module started.
        if not worker.listen() or worker.consumers is not None or worker.ended() is not None:
            return
        time.sleep(_GLANCE)
