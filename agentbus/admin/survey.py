"""Surveys of queues: the server's data about their streams, groups and consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.stream import id_time, text
from agentbus.queues.ids import ASIDE, PRIORITIES, STREAMS
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

# Queues per survey script, which takes up to 15 ms of server time.
_PAGE = 30
# Limits of one script: oldest pending entries, undelivered entries counted one by one, and bytes.
_LOOKED_AT, _COUNTED, _READ = 200, 10_000, 4_000_000
# Seconds since its last request within which an unregistered consumer counts as live.
HEARD = 60.0


@dataclass(frozen=True, slots=True)
class GroupConsumer:
    """A consumer of a group: its pending tasks, and the seconds since its last request."""

    name: str
    pending: int
    idle: float


@dataclass(frozen=True, slots=True)
class Group:
    """The state of a consumer group of a queue; ages are in seconds, by the server's clock.

    `backlog` counts the tasks not delivered yet (a lower bound unless `exact`), `pending` those that
    consumers hold, `retrying` those that wait for their next attempt; `lag` is the sum of the three.
    `last_ids` maps priorities to the last delivered entry.
    """

    queue: str
    group: str
    backlog: int
    exact: bool
    by_priority: Mapping[str, int]
    oldest: float | None
    pending: int
    oldest_pending: float | None
    retrying: int
    lag: int
    dead: int
    last_ids: Mapping[str, str]
    consumers: Sequence[GroupConsumer]


class Survey:
    """The survey script's reply for one queue."""

    def __init__(self, queue: str, now: float, streams: Sequence[Any]) -> None:
        self.queue = queue
        self.now = now
        self.exists = any(length >= 0 for length, _, _ in streams)
        self.lengths = {p: max(0, s[0]) for p, s in zip(STREAMS, streams, strict=True)}
        self.firsts = {p: text(s[1]) for p, s in zip(STREAMS, streams, strict=True)}
        self.groups: dict[str, dict[str, Any]] = {}
        for priority, (_, _, groups) in zip(STREAMS, streams, strict=True):
            for group in groups:
                self.groups.setdefault(text(group[0]), {})[priority] = group

    def later(self, now: float) -> Survey:
        """Return the survey as of a later time, if nothing has changed."""
        later_survey, passed = copy(self), max(0, round((now - self.now) * 1000))
        later_survey.now = now
        later_survey.groups = {
            name: {priority: _idled(part, passed) for priority, part in parts.items()}
            for name, parts in self.groups.items()
        }
        return later_survey

    def age(self, ids: Iterable[str]) -> float | None:
        """Return the age of the oldest entry."""
        times = [id_time(entry_id) for entry_id in ids if entry_id]
        return max(0.0, self.now - min(times)) if times else None

    def group(self, name: str | None, dead: int = 0) -> Group:
        """Return a group's state; a stream without the group counts as unread."""
        parts = self.groups.get(name, {}) if name is not None else {}
        backlog, waiting = {}, []
        for priority in PRIORITIES:
            part = parts.get(priority)
            backlog[priority] = self.lengths[priority] if part is None else int(part[2])
            waiting.append(self.firsts[priority] if part is None else text(part[4]))
        aside = sum(part[6] for part in parts.values())
        pending = sum(part[5] for part in parts.values()) - aside
        idle = max((part[7] for part in parts.values()), default=-1)
        return Group(
            self.queue,
            name or "",
            sum(backlog.values()),
            all(part[3] for part in parts.values()),
            backlog,
            self.age(waiting),
            pending,
            idle / 1000 if idle >= 0 else None,
            aside,
            sum(backlog.values()) + pending + aside,
            dead,
            {priority: text(parts[priority][1]) for priority in PRIORITIES if priority in parts},
            _consumers(parts),
        )


def surveyed(scope: Scope, queues: Sequence[str]) -> Op[list[Survey]]:
    """Survey queues, each atomically."""
    surveys = []
    for at in range(0, len(queues), _PAGE):
        page = queues[at : at + _PAGE]
        keys = [scope.keys.queue(queue, priority) for queue in page for priority in STREAMS]
        now, *streams = yield Script("survey_streams", keys, (ASIDE, _LOOKED_AT, _COUNTED, _READ))
        size = len(STREAMS)
        surveys += [
            Survey(queue, now / 1000, streams[each * size : (each + 1) * size])
            for each, queue in enumerate(page)
        ]
    return surveys


def live(group: Group, workers: Iterable[Registered]) -> int:
    """Return the number of live consumers of a group; `workers` are those registered for it."""
    alive = {worker.worker: worker.alive for worker in workers}
    unlisted = (one for one in group.consumers if one.name not in alive)
    return sum(alive.values()) + sum(one.idle < HEARD for one in unlisted)


def _idled(part: Sequence[Any], passed: int) -> list[Any]:
    """Return the survey of a group in a stream, with its idle times increased."""
    *others, idle, consumers = part
    consumers = [[name, pending, since + passed] for name, pending, since in consumers]
    return [*others, idle + passed if idle >= 0 else idle, consumers]


def _consumers(parts: Mapping[str, Any]) -> tuple[GroupConsumer, ...]:
    """Return the consumers of a group, each with its totals over all streams."""
    totals: dict[str, tuple[int, float]] = {}
    for part in parts.values():
        for raw, pending, idle in part[8]:
            name = text(raw)
            before = totals.get(name, (0, float("inf")))
            totals[name] = before[0] + pending, min(before[1], idle / 1000)
    return tuple(GroupConsumer(name, *totals[name]) for name in sorted(totals))
