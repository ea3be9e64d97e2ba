"""The values of a snapshot: the totals of a project, and the rows that a view shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbus.admin.health import Health
    from agentbus.admin.stats import QueueStats
    from agentbus.admin.survey import Group
    from agentbus.coordination.flags import FlagState
    from agentbus.coordination.leases import Lease
    from agentbus.coordination.message import Message
    from agentbus.coordination.presence import Presence
    from agentbus.coordination.waiters import Waiter
    from agentbus.workers.registry import Registered

# The width of a point of a rate in seconds, and how many there are: the last ten minutes.
POINT, POINTS = 20.0, 30


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of a list to read: those whose name contains `match`, `limit` of them from `offset` on.

    `match` is plain text, and upper and lower case are the same.
    """

    match: str | None = None
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue for one group, as `QueueStats`, with what a view adds.

    `trouble` is `no worker` (tasks are due and no worker is live), `late` (its lag or its oldest task
    exceeds the threshold of `health`), `dead letters`, or None. `paused` is the reason of a pause.
    `dead_workers` counts the registered workers without heartbeats. `points` are the tasks done per second
    over the last ten minutes, a point for each 20 seconds, oldest first; the last one is not complete.
    """

    stats: QueueStats
    trouble: str | None
    paused: str | None
    dead_workers: int
    points: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """One queue: a row for each group, the groups with their consumers, and the registered workers."""

    queue: str
    rows: tuple[QueueRow, ...]
    groups: tuple[Group, ...]
    workers: tuple[Registered, ...]


@dataclass(frozen=True, slots=True)
class EventReport:
    """The last report of a relay (`role` is `relay`) or a consumer of an event stream, `age` seconds ago.

    `lag_events` and `lag_ms` are None if it has reported none.
    """

    stream: str
    role: str
    age: float
    lag_events: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over the whole project.

    Of tasks: `backlog` is not delivered yet, `held` is delivered and not finished (those that wait for
    their next attempt too), `delayed` is not due yet, `dependent` waits for other tasks, `dead` are the
    dead letters that were neither replayed nor purged; a task counts once for each group. `rate` is the
    number of tasks done per second over the last minute. `workers` are live, `dead_workers` are registered
    without heartbeats. `agents` are present, `unread` are the messages in their inboxes. `flags` are held.
    """

    queues: int
    backlog: int
    held: int
    delayed: int
    dependent: int
    dead: int
    rate: float
    workers: int
    dead_workers: int
    agents: int
    known_agents: int
    unread: int
    flags: int
    waiters: int
    leases: int
    event_streams: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A project at one moment, `at` by the server's clock; reading it took `took` seconds.

    Each list is the part that was asked for, and `matching` is how many rows match, by list. `queues` are
    ordered by trouble; `agents` are those present, last seen first; `flags` are those
    that are awaited first, a free one too, then the held ones.
    `messages` are what was spoken since the last snapshot, oldest first, and `missed` is how many more were
    spoken that it leaves out. `health` is as old as `health_age` says, in seconds. `oldest_part` is the age
    of the oldest other figure: more than a thousand queues and 500 workers are read less often, the first
    tasks of another priority or a later time in one of more than 300 queues by the third snapshot, and of
    more than a hundred agents those that are neither active nor asked for in turns. Queues and flags that
    another program has made are found by scans, after some seconds.
    """

    project: str
    at: float
    took: float
    totals: Totals
    matching: dict[str, int]
    queues: tuple[QueueRow, ...]
    agents: tuple[Presence, ...]
    flags: tuple[FlagState, ...]
    waiters: tuple[Waiter, ...]
    leases: tuple[Lease, ...]
    messages: tuple[Message, ...]
    missed: int
    events: tuple[EventReport, ...]
    quarantined: tuple[str, ...]
    halted: str | None
    health: Health
    health_age: float
    oldest_part: float
