"""Statistics of queues, groups and streams: backlog, ages, lag, rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.admin.metrics_reader import Metrics, Sample, recent, summed
from agentbus.admin.project import MANY_KEYS
from agentbus.core import names
from agentbus.core.names import unescape
from agentbus.core.record import Record
from agentbus.core.stream import id_time, is_number, text
from agentbus.queues.ids import ASIDE, PRIORITIES, STREAMS, missing
from agentbus.store.failures import or_empty
from agentbus.store.scan import members, scan
from agentbus.store.steps import Batch, Command, Script
from agentbus.workers import registry
from agentbus.workers.metrics import Durations
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

    # The first fields of `StreamInfo`: key, kind, queue, group, priority.
    Stream = tuple[str, str, str | None, str | None, str | None]

# Queues per survey script, which takes up to 15 ms of the server, and streams per look at their ends.
_PAGE, _STREAMS = 30, 100
# Limits of what the script counts itself: the oldest pending entries, undelivered entries, and bytes.
_LOOKED_AT, _COUNTED, _READ = 200, 10_000, 4_000_000
_MINUTE = 60.0
# Seconds since its last request within which an unregistered consumer counts as live.
HEARD = 60.0
# The newest samples to read; a thousand busy workers write more in a minute.
_SAMPLES = 20_000
# The rate, attempts and durations of a queue without samples.
_IDLE = (0.0, None, None, None)
# Internal fields of the counters' hash.
_NOTES = ("refused_told", "refused_at")


class GroupConsumer(Record):
    """A consumer of a group: its pending tasks, and the seconds since its last request."""

    name: str
    pending: int
    idle: float


class Group(Record):
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


class QueueStats(Record):
    """The statistics of a queue for one group (None if it has no group yet).

    As in `Group`; `delayed` counts the tasks that are not due yet, `dependent` those that wait for other
    tasks; `consumers` is the number of live ones. Over the last minute, `rate` is the number of tasks
    done per second, `attempts` the mean number of runs of a finished task. `counters` are the totals of
    the queue, `worked` those of the group.
    """

    queue: str
    group: str | None
    backlog: int
    exact: bool
    by_priority: Mapping[str, int]
    oldest: float | None
    pending: int
    oldest_pending: float | None
    retrying: int
    lag: int
    delayed: int
    dependent: int
    dead: int
    consumers: int
    rate: float
    attempts: float | None
    running: Durations | None
    waiting: Durations | None
    counters: Mapping[str, int]
    worked: Mapping[str, int]


class StreamInfo(Record):
    """A stream of the project: its kind, its length, its first and last id, and their ages in seconds."""

    key: str
    kind: str
    queue: str | None
    group: str | None
    priority: str | None
    length: int
    first_id: str | None
    last_id: str | None
    oldest: float | None
    newest: float | None


class Survey:
    """The survey script's reply about one queue."""

    def __init__(self, queue: str, now: float, streams: Sequence[Any]) -> None:
        self.queue = queue
        self.now = now
        self.exists = any(length >= 0 for length, _, _ in streams)
        self.lengths = {p: max(0, s[0]) for p, s in zip(STREAMS, streams, strict=True)}
        self.firsts = {p: text(s[1]) for p, s in zip(STREAMS, streams, strict=True)}
        self.groups: dict[str, dict[str, Any]] = {}
        for priority, (_, _, groups) in zip(STREAMS, streams, strict=True):
            for found in groups:
                self.groups.setdefault(text(found[0]), {})[priority] = found

    def age(self, ids: Iterable[str]) -> float | None:
        """Return the age of the oldest entry."""
        times = [id_time(found) for found in ids if found]
        return max(0.0, self.now - min(times)) if times else None

    def group(self, name: str | None, dead: int = 0) -> Group:
        """Return a group's state; it will read a stream without the group from the start."""
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


def stats(
    scope: Scope,
    queue: str | None = None,
    *,
    letters_of: Callable[[str], str] = str,
    most: int | None = None,
    speed: bool = True,
    workers: Sequence[Registered] | None = None,
    among: Sequence[str] | None = None,
    samples: Callable[[float], Iterable[Sample]] | None = None,
) -> Op[list[QueueStats]]:
    """Return the statistics of every queue (at most `most`), or of one, by group. Raises `NotFound`.

    `letters_of` returns the queue that has a queue's dead letters. Without `speed` the metrics are not
    read, and rates are those of an idle queue. `workers` are the registered ones, `among` the queues, if
    these are known; `samples` returns those since a unix time, if they were read before.
    """
    if queue is not None:
        known = [names.name("queue", queue)]
    elif among is not None:
        known = [*among]
    else:
        known, _ = yield from known_queues(scope)
    surveys = yield from surveyed(scope, known[:most])
    speeds: dict[tuple[str, str | None], Metrics] = {}
    if speed and surveys:
        begins = max(0, round((surveys[0].now - _MINUTE) * 1000))
        if samples is None:
            read: Iterable[Sample] = yield from recent(scope, f"{begins}-0", _SAMPLES)
        else:
            read = samples(begins / 1000)
        speeds = {(s.queue, s.group): s for s in summed(read, _MINUTE, queue)}
    if workers is None:
        workers = (yield from registry.workers(scope, counted=False)) if surveys else []
    found = yield from _stats_of(scope, surveys, speeds, letters_of, workers)
    if queue is not None and not found:
        raise (yield from missing(scope, queue))
    return found


def groups(scope: Scope, queue: str, *, letters_of: str | None = None) -> Op[list[Group]]:
    """Return the groups of a queue with their consumers. Raises `NotFound`."""
    (survey,) = yield from surveyed(scope, [names.name("queue", queue)])
    if not survey.exists:
        raise (yield from missing(scope, queue))
    known = sorted(survey.groups)
    dead = yield Batch(
        [("XLEN", scope.keys.dead_letters(letters_of or queue, name)) for name in known]
        or [("PING",)]
    )
    return [survey.group(name, _count(letters)) for name, letters in zip(known, dead, strict=False)]


def lags(scope: Scope, groups: Collection[tuple[str, str]]) -> Op[dict[tuple[str, str], int]]:
    """Return the lag by queue and group; unknown queues are left out."""
    surveys = yield from surveyed(scope, sorted({queue for queue, _ in groups}))
    found = {survey.queue: survey for survey in surveys if survey.exists}
    return {(queue, name): found[queue].group(name).lag for queue, name in groups if queue in found}


def left(scope: Scope, queue: str, group: str) -> Op[int]:
    """Return how many tasks a group has not finished, including those not due yet."""
    (survey,) = yield from surveyed(scope, [queue])
    delayed = yield Command("ZCARD", scope.keys.delayed(queue))
    return survey.group(group).lag + int(delayed)


def streams(scope: Scope, limit: int | None = None) -> Op[list[StreamInfo]]:
    """Return the streams of the project: the channel, queues by priority, dead letters, metrics.

    At most the first `limit` in this order.
    """
    keys = scope.keys
    known: list[Stream] = [(keys.channel, "channel", None, None, None)]
    for key, kind, queue, last in (yield from _named(scope)):
        if kind == "dlq":
            known.append((key, "dead letters", queue, last, None))
        else:
            known.append((key, "queue", queue, None, last or "normal"))
    known.append((keys.metrics, "metrics", None, None, None))
    order = {"channel": 0, "queue": 1, "dead letters": 2, "metrics": 3}
    rank = {priority: at for at, priority in enumerate(PRIORITIES)}
    known.sort(key=lambda one: (order[one[1]], one[2] or "", rank.get(one[4] or "", 9), one[0]))
    found: list[StreamInfo] = []
    for at in range(0, len(known), _STREAMS):
        if limit is not None and len(found) >= limit:
            break
        page = known[at : at + _STREAMS]
        now, *ends = yield Script("ends", [one[0] for one in page])
        for one, (length, first, last_id) in zip(page, ends, strict=True):
            if length >= 0:
                found.append(_info(one, now / 1000, length, text(first), text(last_id)))
    return found[:limit]


def _info(one: Stream, now: float, length: int, first: str, last: str) -> StreamInfo:
    ages = [max(0.0, now - id_time(end)) if end else None for end in (first, last)]
    return StreamInfo(*one, length, first or None, last or None, *ages)


def known_queues(scope: Scope) -> Op[tuple[list[str], dict[str, set[str]]]]:
    """Return the queues, and the groups with dead letters by the name that these are stored under.

    Includes queues of other programs, unless the server has too many keys.
    """
    keys = scope.keys
    queues = set((yield from or_empty(members(keys.queues), [])))
    size = yield Command("DBSIZE")
    letters: dict[str, set[str]] = {}
    if not isinstance(size, int) or size > MANY_KEYS:
        return sorted(queues), letters
    for _, kind, name, last in (yield from _named(scope)):
        if kind == "q":
            queues.add(name)
        elif last is not None:
            letters.setdefault(name, set()).add(last)
    return sorted(queues), letters


def _named(scope: Scope) -> Op[list[tuple[str, str, str, str | None]]]:
    """Return the streams of queues and of dead letters: key, kind, queue, and priority or group, if any."""
    found = []
    for key in (yield from scan(scope, None, of="stream")):
        kind, _, rest = key[len(scope.keys.project) + 1 :].partition(":")
        name, colon, last = rest.partition(":")
        # Other programs' keys: not UTF-8, or with more parts.
        if kind in ("q", "dlq") and ":" not in last and is_text(key):
            found.append((key, kind, unescape(name), unescape(last) if colon else None))
    return found


def surveyed(scope: Scope, queues: Sequence[str]) -> Op[list[Survey]]:
    """Survey queues, each atomically."""
    found = []
    for at in range(0, len(queues), _PAGE):
        page = queues[at : at + _PAGE]
        keys = [scope.keys.queue(queue, priority) for queue in page for priority in STREAMS]
        now, *streams = yield Script("survey", keys, (ASIDE, _LOOKED_AT, _COUNTED, _READ))
        size = len(STREAMS)
        found += [
            Survey(queue, now / 1000, streams[each * size : (each + 1) * size])
            for each, queue in enumerate(page)
        ]
    return found


def _stats_of(
    scope: Scope,
    surveys: Sequence[Survey],
    speeds: Mapping[tuple[str, str | None], Metrics],
    letters_of: Callable[[str], str],
    workers: Sequence[Registered],
) -> Op[list[QueueStats]]:
    keys = scope.keys
    registered: dict[tuple[str, str], list[Registered]] = {}
    for worker in workers:
        registered.setdefault((worker.queue, worker.group), []).append(worker)
    wanted: list[tuple[str, ...]] = []
    for survey in surveys:
        wanted.append(("ZCARD", keys.delayed(survey.queue)))
        wanted.append(("ZCARD", keys.after(survey.queue)))
        wanted.append(("HGETALL", keys.stats(survey.queue)))
        for name in survey.groups:
            wanted.append(("XLEN", keys.dead_letters(letters_of(survey.queue), name)))
            wanted.append(("HGETALL", keys.worked(survey.queue, name)))
    replies = iter((yield from in_batches(wanted)))
    found = []
    for survey in surveys:
        waiting = _count(next(replies)), _count(next(replies))
        counters = _counters(next(replies))
        about = {name: (_count(next(replies)), _counters(next(replies))) for name in survey.groups}
        # The counter of delayed tasks outlives a deleted queue.
        if not (survey.exists or any(waiting) or counters.keys() - {"scheduled"}):
            continue
        rows: list[str | None] = [*sorted(about)]
        for row in rows or [None]:
            dead, worked = about[row] if row is not None else (0, {})
            speed = speeds.get((survey.queue, row))
            group = survey.group(row, dead)
            one = QueueStats(
                *(group.queue, row, group.backlog, group.exact, group.by_priority, group.oldest),
                *(group.pending, group.oldest_pending, group.retrying, group.lag),
                *(*waiting, group.dead, live(group, registered.get((group.queue, row or ""), ()))),
                *((speed.rate, speed.attempts, speed.running, speed.waiting) if speed else _IDLE),
                *(counters, worked),
            )
            found.append(one)
    return found


def live(group: Group, workers: Iterable[Registered]) -> int:
    """Return how many consumers of a group are live; `workers` are those registered for it."""
    alive = {worker.worker: worker.alive for worker in workers}
    unlisted = (one for one in group.consumers if one.name not in alive)
    return sum(alive.values()) + sum(one.idle < HEARD for one in unlisted)


def _consumers(parts: Mapping[str, Any]) -> tuple[GroupConsumer, ...]:
    """Return the consumers of a group, each with the totals of its streams."""
    found: dict[str, tuple[int, float]] = {}
    for part in parts.values():
        for raw, pending, idle in part[8]:
            name = text(raw)
            before = found.get(name, (0, float("inf")))
            found[name] = before[0] + pending, min(before[1], idle / 1000)
    return tuple(GroupConsumer(name, *found[name]) for name in sorted(found))


def _counters(reply: Any) -> dict[str, int]:
    if not isinstance(reply, list):
        return {}
    named = {text(reply[i]): text(reply[i + 1]) for i in range(0, len(reply), 2)}
    return {
        name: int(value)
        for name, value in sorted(named.items())
        if is_number(value) and name not in _NOTES
    }


def _count(reply: Any) -> int:
    return reply if isinstance(reply, int) else 0


def is_text(key: str) -> bool:
    """Return whether a key from SCAN is UTF-8; other bytes are decoded as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in key)
