"""The processes of a supervisor: of consumers, the relay and jobs."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import UsageError
from agentbus.events.declare import chosen
from agentbus.events.supervisor.options import RELAY, heartbeat_file
from agentbus.processes.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.core.signals import StopEvent
    from agentbus.events.ledger import Ledger
    from agentbus.events.supervisor.options import ProcessOptions, SupervisedJob
    from agentbus.queues.runner import BlockingBus

_RUN = "agentbus.events.supervisor.child:work"
_GLANCE = 0.05
_SETTINGS = ("agent", "project", "url", "json", "log_level", "deadline", "max_body", "app")


class ConsumerProcess(WorkerProcess):
    """A supervised process; `owner` holds its lease, and `consumers` lists those of the module."""

    def __init__(self, label: str, job: Mapping[str, Any]) -> None:
        self.owner = str(job.get("owner"))
        self._heartbeat = job.get("heartbeat")
        super().__init__(label, _RUN, job)

    @property
    def consumers(self) -> dict[str, str] | None:
        """The stream of each consumer by its name; None if the process has not listed them."""
        return self.said.get("consumers")

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        super().close()
        if self._heartbeat is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._heartbeat)


class ProcessFactory:
    """Starts processes for consumers, the relay and jobs, and one to list the consumers."""

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

    def worker(self, name: str, supervised: SupervisedJob | None = None) -> ConsumerProcess:
        """Start the process of a consumer, the relay or a job. Raises `OSError`."""
        job = self._job(name, self._bus.runner.scope.token())
        if supervised is not None:
            job |= {"target": supervised.target, "options": dict(supervised.options)}
        if self._options.heartbeat_dir is not None:
            job["heartbeat"] = heartbeat_file(self._options.heartbeat_dir, name)
        label = name if supervised or name == RELAY else f"consumer {name}"
        return ConsumerProcess(label, job)

    def declared(
        self, only: str | None, within: float, stopped: StopEvent
    ) -> dict[str, str] | None:
        """Return the stream of each consumer by its name; None if `stopped` is set first.

        The module is loaded in its own process. Raises `UsageError`.
        """
        assert self.module is not None
        worker = ConsumerProcess(f"look {self.module}", self._job(None, None))
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
        return chosen(worker.consumers, self.module, only, self._bus.runner.settings.app)

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


def _listen_to_all(worker: ConsumerProcess, until: float, stopped: StopEvent) -> None:
    """Listen until a process has listed its consumers, has ended, or has run out of time."""
    while not stopped.is_set() and time.monotonic() < until:
        # A process that the module started may keep this end of the pipe open, so check whether the
        # worker has ended.
        if not worker.listen() or worker.consumers is not None or worker.ended() is not None:
            return
        time.sleep(_GLANCE)
