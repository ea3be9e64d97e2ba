"""What a supervisor knows of each consumer, and what it tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbus.events.supervisor.crash_loop import CrashHistory
    from agentbus.events.supervisor.process import WorkerProcess


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that became of a consumer's worker.

    `event` is `started`, `crashed` (it ended unasked), `killed` (it was silent for too long),
    `quarantined`, `released`, or `stopped` (as it was told to). Of one that ended, `exit` is its code, or
    `signal` the name of what ended it. `crashes` is how many there were in this series.
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
    """How a consumer is: `state` is `starting`, `running`, `waiting` (to be started) or `quarantined`."""

    consumer: str
    stream: str
    state: str
    pid: int | None
    restarts: int
    crashes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """How many workers run, consumers are in quarantine, and since the start workers began or crashed."""

    running: int
    quarantined: int
    starts: int
    restarts: int
    crashes: int
    consumers: tuple[PostStatus, ...]


@dataclass(slots=True, eq=False)
class Supervised:
    """A consumer that is to run here: its worker, or how the last one ended and when the next starts."""

    name: str
    stream: str
    crashes: CrashHistory
    worker: WorkerProcess | None = None
    start_at: float = 0.0
    started: bool = False
    restarts: int = 0
    quarantined: bool = False
    pid: int = 0
    code: int = 0
    lived: float = 0.0
    silent: bool = False
    error: str | None = None
