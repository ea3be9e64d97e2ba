"""How a supervisor learns what a module declares, and starts workers for it."""

from __future__ import annotations

import os
import selectors
import sys
import time
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import UsageError
from agentbus.events.supervisor.process import WorkerProcess

if TYPE_CHECKING:
    import threading

    from agentbus.events.ledger import Ledger
    from agentbus.queues.runner import BlockingBus

_GLANCE = 0.05
_SETTINGS = ("agent", "project", "url", "json", "log_level", "deadline", "max_body")


class ProcessFactory:
    """Starts processes that know a module, a database and a server, and share no connection with us."""

    def __init__(
        self, module: str, ledger: Ledger, bus: BlockingBus, silence: float, lease: float
    ) -> None:
        self.module = module
        self._ledger = ledger
        self._bus = bus
        self._silence = silence
        self._lease = lease

    def worker(self, consumer: str) -> WorkerProcess:
        """Start a worker for a consumer. Raises `OSError`."""
        job = self._job(consumer, self._bus.runner.scope.token())
        return WorkerProcess(f"consumer {consumer}", job, _path())

    def declared(
        self, only: str | None, within: float, stopped: threading.Event
    ) -> dict[str, str] | None:
        """Return the stream of each consumer by its name; None if it was stopped meanwhile.

        The module is loaded in a process of its own. Raises `UsageError`.
        """
        worker = WorkerProcess(f"look {self.module}", self._job(None, None), _path())
        try:
            _hear_out(worker, time.monotonic() + within, stopped)
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
        return self._chosen(dict(worker.consumers), only)

    def _chosen(self, found: dict[str, str], only: str | None) -> dict[str, str]:
        if not found:
            raise UsageError(
                f"the module {self.module!r} declares no consumer", hint="declare it with @consumer"
            )
        if only is None:
            return found
        if only not in found:
            raise UsageError(
                f"no consumer is named {only!r}", hint=f"there are {', '.join(sorted(found))}"
            )
        return {only: found[only]}

    def _job(self, consumer: str | None, owner: str | None) -> dict[str, Any]:
        settings = self._bus.runner.settings
        return {
            "module": self.module,
            "consumer": consumer,
            "owner": owner,
            "database": self._ledger.engine.url.render_as_string(hide_password=False),
            "prefix": self._ledger.prefix,
            "schema": self._ledger.tables.lease.schema,
            "bus": {**{name: getattr(settings, name) for name in _SETTINGS}, "sources": {}},
            "timeout": self._silence,
            "lease": self._lease,
        }


def _hear_out(worker: WorkerProcess, until: float, stopped: threading.Event) -> None:
    """Listen until a process has said all, or its time is up."""
    with selectors.DefaultSelector() as selector:
        selector.register(worker, selectors.EVENT_READ)
        while not stopped.is_set() and time.monotonic() < until:
            # Its end of the pipe may live on in a process that the module started.
            if not worker.listen() or worker.consumers is not None or worker.ended() is not None:
                return
            selector.select(_GLANCE)


def _path() -> list[str]:
    """Return where modules are found: in the current directory, and as here."""
    return list(dict.fromkeys([os.getcwd(), *(each for each in sys.path if each)]))
