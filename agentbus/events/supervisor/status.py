"""The status of a supervisor and its consumers, and the changes that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbus.events.supervisor.options import SupervisedJob
    from agentbus.events.supervisor.process import ConsumerProcess
    from agentbus.processes.crash_loop import CrashHistory


@dataclass(frozen=True, slots=True)
class Happening:
    """A change of a consumer's process; processes of the relay and of jobs have no stream.

    `event` is `started`, `crashed` (it ended by itself), `killed` (no heartbeat for too long),
    `quarantined`, `released`, or `stopped` (on request). If the process ended, `exit` is its exit
    code, or `signal` the name of the signal. `crashes` counts the crashes of the current series.
    """

    consumer: str
    stream: str
    event: str
    pid: int | None = None
    exit: int | None = None
    signal: str | None = None
    crashes: int = 0
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PostStatus:
    """A consumer: `state` is `starting`, `running`, `waiting` (to be started) or `quarantined`."""

    consumer: str
    stream: str
    state: str
    pid: int | None
    restarts: int
    crashes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """Numbers of running processes and quarantined consumers, and of starts and crashes so far."""

    running: int
    quarantined: int
    starts: int
    restarts: int
    crashes: int
    consumers: tuple[PostStatus, ...]


@dataclass(slots=True, eq=False)
class Supervised:
    """A consumer, relay or job to run here: its process, or the time of its next start."""

    name: str
    stream: str
    crashes: CrashHistory
    job: SupervisedJob | None = None
    worker: ConsumerProcess | None = None
    start_at: float = 0.0
    started: bool = False
    restarts: int = 0
    quarantined: bool = False
    error: str | None = None
