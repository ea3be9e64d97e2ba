"""The values of a snapshot: the totals of a project, and the rows of a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from agentbus.admin.health import Health
    from agentbus.admin.stats import QueueStats
    from agentbus.admin.survey import Group
    from agentbus.coordination.flags import FlagState
    from agentbus.coordination.leases import Lease
    from agentbus.coordination.message import Message
    from agentbus.coordination.presence import Presence
    from agentbus.coordination.waiters import Waiter
    from agentbus.workers.registry import Registered

    T = TypeVar("T")

# Seconds per point of a rate, and the number of points: the last ten minutes.
POINT, POINTS = 20.0, 30


@dataclass(frozen=True, slots=True)
class RowRange:
    """The requested rows of a list: `limit` rows from `offset` among names that contain `match`.

    `match` is plain text, and ignores case. `order` is the figure of a list by which its rows are sorted,
    with `-` before it from the largest one on; a list without this figure keeps its own order.
    """

    match: str | None = None
    offset: int = 0
    limit: int = 50
    order: str = ""

    def sorted(self, rows: Sequence[T], by: Mapping[str, Callable[[T], Any]]) -> Sequence[T]:
        """Return rows in the requested order; `by` has the value of a row for each figure."""
        value = by.get(self.order.removeprefix("-"))
        if value is None:
            return rows
        return sorted(rows, key=value, reverse=self.order.startswith("-"))


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue for one group, as `QueueStats`, with additional fields for a view.

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

    `lag_events` and `lag_ms` are None if it has reported no lag. `parked` is the number of a consumer's
    parked events, and `error` that of the event that blocks it, or of the newest parked one, '' if none.
    """

    stream: str
    role: str
    age: float
    lag_events: int | None
    lag_ms: int | None
    parked: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over the whole project.

    Numbers of tasks: `backlog` are not delivered yet, `held` are delivered and not finished
    (including retries), `delayed` are not due yet, `blocked` wait for other tasks, and `dead` are
    the dead letters that were neither replayed nor purged. A task counts once for each group.
    `rate` is the number of tasks done per second over the last minute. `workers` counts live
    workers, `dead_workers` those registered without heartbeats, `agents` the present agents,
    `unread` the messages in their inboxes, and `flags` the held flags.
    """

    queues: int
    backlog: int
    held: int
    delayed: int
    blocked: int
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

    Each list has the requested rows, and `matching` the number of matching rows by list. `queues`
    are ordered by trouble; `agents` are those present, last seen first; `flags` are awaited flags,
    even free ones, then held flags. `messages` are the messages since the last snapshot, oldest
    first, and `missed` is the number of omitted messages. `health_age` is the age of `health` in
    seconds. `oldest_part` is the age of the oldest other figure. Beyond a thousand queues or 500
    workers, these are read less often. With more than 300 queues, a first task of another priority
    or a later time appears by the third snapshot. Of more than a hundred agents, those that are
    neither active nor requested are read in turns. Queues and flags of other programs are found by
    scans after some seconds.
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
