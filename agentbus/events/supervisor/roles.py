"""Roles of supervised processes: a consumer, the relay, or a job."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.client.bus import Bus
from agentbus.core.errors import UsageError
from agentbus.core.settings import Settings
from agentbus.events import kill_points, relay
from agentbus.events.declare import load, registered
from agentbus.events.event_consumer import POLL, READ_AT_ONCE, Consumer
from agentbus.events.opening import open_ledger
from agentbus.events.supervisor.options import RELAY, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentbus.events.ledger import Ledger
    from agentbus.processes.report_pipe import ReportPipe


class Role(Protocol):
    """The work of a process, which runs until it is stopped."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


class JobControl:
    """A supervised job's connection to its supervisor; the job ends when `stopped` is set.

    The first heartbeat shows that the job has started, which may take longer than the heartbeat
    timeout.
    """

    def __init__(self, report: ReportPipe) -> None:
        self.stopped = threading.Event()
        self._report = report
        self._started = False

    def beat(self) -> None:
        """Send a heartbeat; call it at least once a second."""
        if not self._started:
            self._started = True
            self._report.send(ready=True)
        self._report.beat()

    def wait(self, seconds: float) -> bool:
        """Wait while sending heartbeats; returns whether the job must end."""
        while seconds > 0 and not self.stopped.wait(min(seconds, 1.0)):
            self.beat()
            seconds -= 1.0
        return self.stopped.is_set()


def role(job: Mapping[str, Any], report: ReportPipe) -> Role:
    """Return the role that a job describes, ready to run."""
    if job["target"] is not None:
        return _Job(job, report)
    return _relay(job, report) if job["consumer"] == RELAY else _consumer(job, report)


class _Job:
    """A job's function that runs beside the consumers."""

    def __init__(self, job: Mapping[str, Any], report: ReportPipe) -> None:
        module, _, name = job["target"].partition(":")
        self._run = getattr(import_module(module), name)
        self._options = job["options"]
        self._settings = _settings(job)
        self._control = JobControl(report)

    def run(self) -> None:
        self._run(self._settings, self._control, **self._options)

    def stop(self) -> None:
        self._control.stopped.set()


def _settings(job: Mapping[str, Any]) -> Settings:
    # The process must stop waiting for a server before its heartbeat times out.
    return Settings(**{**job["bus"], "deadline": min(job["bus"]["deadline"], job["timeout"] / 3)})


def _ledger(job: Mapping[str, Any], settings: Settings) -> Ledger:
    return open_ledger(
        *(job["database"], job["prefix"], job["schema"]),
        deadline=settings.deadline,
        patience=job["timeout"] / 3,
    )


def _beating(report: ReportPipe) -> Callable[[str], None]:
    """Return a function for kill points that sends a heartbeat: work that passes one is alive."""
    kill_point = kill_points.hook()

    def at(reached: str) -> None:
        report.beat()
        kill_point(reached)

    return at


def _consumer(job: Mapping[str, Any], report: ReportPipe) -> Role:
    load(job["module"])
    declared = registered(job["bus"]["app"]).get(job["consumer"])
    if declared is None:
        raise UsageError(
            f"the module {job['module']!r} no longer declares a consumer {job['consumer']!r}",
            hint="put it back, or restart the supervisor",
        )
    settings, given = _settings(job), options_of(job["process"])
    consumer = Consumer(
        *(declared, _ledger(job, settings), Bus(settings)),
        at=_beating(report),
        beat=report.beat,
        lease=given.lease,
        renew=given.lease_renewal,
        poll=given.poll_interval or POLL,
        at_once=given.batch_size or READ_AT_ONCE,
        cleanup=given.cleanup,
    )
    # The supervisor releases the lease of this owner when the process has ended.
    consumer.owner = job["owner"]
    return consumer


def _relay(job: Mapping[str, Any], report: ReportPipe) -> Role:
    settings, given = _settings(job), options_of(job["process"])
    events_relay = relay.Relay(
        *(_ledger(job, settings), Bus(settings)),
        at=_beating(report),
        beat=report.beat,
        lease=given.lease,
        renew=given.lease_renewal,
        poll=given.poll_interval or relay.POLL,
        cleanup=given.cleanup,
    )
    events_relay.owner = job["owner"]
    return events_relay
