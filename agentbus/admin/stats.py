"""Statistics of queues, groups and streams: backlog, ages, lag, rates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.admin import letter_counts
from agentbus.admin.metrics_reader import Metrics, Sample, recent, summed
from agentbus.admin.project import MANY_KEYS
from agentbus.admin.survey import live, surveyed
from agentbus.core import names, validate
from agentbus.core.names import unescape
from agentbus.core.stream import id_time, is_number, text
from agentbus.queues.ids import PRIORITIES, missing
from agentbus.store.failures import or_empty
from agentbus.store.scan import members, scan
from agentbus.store.steps import Command, Script
from agentbus.workers import registry
from agentbus.workers.metrics import Durations
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from agentbus.admin.survey import Group, Survey
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

    # The first fields of `StreamInfo`: key, kind, queue, group, priority.
    Stream = tuple[str, str, str | None, str | None, str | None]

# Maximum number of streams per script that reads their ends.
_STREAMS = 100
_MINUTE = 60.0
# Maximum number of samples, the newest; a thousand busy workers write more than this in a minute.
_SAMPLES = 20_000
# The rate, attempts and durations of a queue without samples.
_IDLE = (0.0, None, None, None)
# Fields of the counters' hash that are not counters.
_NOTES = ("refused_told", "refused_at")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The statistics of a queue for one group (None if it has no group yet).

    The fields of `Group` have the same meaning here. `delayed` counts the tasks that are not due
    yet, `blocked` those that wait for other tasks; `consumers` is the number of live consumers.
    Over the last minute, `rate` is the number of tasks done per second, `attempts` the mean number
    of runs of a finished task. `counters` are the totals of the queue, `worked` those of the group.
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
    blocked: int
    dead: int
    consumers: int
    rate: float
    attempts: float | None
    running: Durations | None
    waiting: Durations | None
    counters: Mapping[str, int]
    worked: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StreamInfo:
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


def stats(
    scope: Scope,
    queue: str | None = None,
    *,
    letters_of: Callable[[str], str] = str,
    most: int | None = None,
    speed: bool = True,
    workers: Sequence[Registered] | None = None,
    surveys: Sequence[Survey] | None = None,
    samples: Callable[[float], tuple[Iterable[Sample], float]] | None = None,
) -> Op[list[QueueStats]]:
    """Return the statistics of every queue (at most `most`), or of one, by group. Raises `NotFound`.

    `letters_of` returns the name under which a queue's dead letters are stored. Without `speed` the
    metrics are not read, and rates are those of an idle queue. The caller may pass data that it has
    already read: the registered `workers`, the `surveys` of the queues, and a function `samples`
    that returns the samples since a unix time and the seconds that they cover.
    """
    if most is not None:
        validate.number_of("limit", most, "queues")
    if surveys is None:
        known = (
            (yield from known_queues(scope))[0] if queue is None else [names.name("queue", queue)]
        )
        surveys = yield from surveyed(scope, known[:most])
    speeds: dict[tuple[str, str | None], Metrics] = {}
    if speed and surveys:
        now = surveys[0].now
        begins = max(0, round((now - _MINUTE) * 1000))
        read: Iterable[Sample]
        if samples is not None:
            read, seconds = samples(begins / 1000)
        else:
            read = newest = yield from recent(scope, f"{begins}-0", _SAMPLES)
            whole = len(newest) < _SAMPLES
            seconds = _MINUTE if whole else max(1.0, now - id_time(newest[0].id))
        speeds = {(s.queue, s.group): s for s in summed(read, seconds, queue)}
    if workers is None:
        workers = (yield from registry.workers(scope, counted=False)) if surveys else []
    rows = yield from _stats_of(scope, surveys, speeds, letters_of, workers)
    if queue is not None and not rows:
        raise (yield from missing(scope, queue))
    return rows


def groups(scope: Scope, queue: str, *, letters_of: str | None = None) -> Op[list[Group]]:
    """Return the groups of a queue with their consumers. Raises `NotFound`."""
    (survey,) = yield from surveyed(scope, [names.name("queue", queue)])
    if not survey.exists:
        raise (yield from missing(scope, queue))
    known = sorted(survey.groups)
    where = letters_of or queue
    asked = [one for name in known for one in letter_counts.requests(scope.keys, where, name)]
    replies = iter((yield from in_batches(asked)))
    return [survey.group(name, letter_counts.left(replies)) for name in known]


def lags(scope: Scope, groups: Collection[tuple[str, str]]) -> Op[dict[tuple[str, str], int]]:
    """Return the lag by queue and group; unknown queues are left out."""
    surveys = yield from surveyed(scope, sorted({queue for queue, _ in groups}))
    known = {survey.queue: survey for survey in surveys if survey.exists}
    return {(queue, name): known[queue].group(name).lag for queue, name in groups if queue in known}


def left(scope: Scope, queue: str, group: str) -> Op[int]:
    """Return the number of tasks that a group has not finished, including those not due yet."""
    (survey,) = yield from surveyed(scope, [queue])
    delayed = yield Command("ZCARD", scope.keys.delayed(queue))
    return survey.group(group).lag + int(delayed)


def streams(scope: Scope, limit: int | None = None) -> Op[list[StreamInfo]]:
    """Return the streams of the project: the channel, queues by priority, dead letters, metrics.

    At most the first `limit` in this order.
    """
    if limit is not None:
        validate.number_of("limit", limit, "streams")
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
    infos: list[StreamInfo] = []
    for at in range(0, len(known), _STREAMS):
        if limit is not None and len(infos) >= limit:
            break
        page = known[at : at + _STREAMS]
        now, *ends = yield Script("read_stream_ends", [one[0] for one in page])
        for one, (length, first, last_id) in zip(page, ends, strict=True):
            if length >= 0:
                infos.append(_info(one, now / 1000, length, text(first), text(last_id)))
    return infos[:limit]


def _info(one: Stream, now: float, length: int, first: str, last: str) -> StreamInfo:
    ages = [max(0.0, now - id_time(end)) if end else None for end in (first, last)]
    return StreamInfo(*one, length, first or None, last or None, *ages)


def known_queues(scope: Scope) -> Op[tuple[list[str], dict[str, set[str]]]]:
    """Return the queues, and the groups with dead letters by the name under which these are stored.

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


def letter_boxes(scope: Scope) -> Op[list[tuple[str, str]]]:
    """Return the names under which dead letters are stored, with their groups, sorted."""
    named = yield from _named(scope)
    return sorted((name, last) for _, kind, name, last in named if kind == "dlq" and last)


def _named(scope: Scope) -> Op[list[tuple[str, str, str, str | None]]]:
    """Return the streams of queues and of dead letters: key, kind, queue, and priority or group, if any."""
    named = []
    for key in (yield from scan(scope, None, of="stream")):
        kind, _, rest = key[len(scope.keys.project) + 1 :].partition(":")
        name, colon, last = rest.partition(":")
        # Skip the keys of other programs, which are not UTF-8 or have more parts.
        if kind in ("q", "dlq") and ":" not in last and is_text(key):
            named.append((key, kind, unescape(name), unescape(last) if colon else None))
    return named


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
            wanted.extend(letter_counts.requests(keys, letters_of(survey.queue), name))
            wanted.append(("HGETALL", keys.worked(survey.queue, name)))
    replies = iter((yield from in_batches(wanted)))
    figures = []
    for survey in surveys:
        waiting = _count(next(replies)), _count(next(replies))
        counters = _counters(next(replies))
        about = {
            name: (letter_counts.left(replies), _counters(next(replies))) for name in survey.groups
        }
        if not (survey.exists or any(waiting) or counters):
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
            figures.append(one)
    return figures


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
