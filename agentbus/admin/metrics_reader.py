"""Reads the metrics stream: single entries, and their totals by queue and group."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.errors import EpochMismatch
from agentbus.core.stream import fields, id_time, is_number, position, text
from agentbus.core.timespec import since as starting_at
from agentbus.queues.ids import PRIORITIES, missing
from agentbus.store.failures import or_empty
from agentbus.store.scope import server_time
from agentbus.store.steps import Command, Emit, Wait, one_step
from agentbus.workers.metrics import BOUND, Durations, Histogram

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step

_PAGE = 1000
_LONGEST_WAIT = 5.0
# The fields of an entry that are not event counts.
_OWN = frozenset(
    [
        *("kind", "version", "queue", "group", "worker", "agent", "from", "to"),
        *("ran", "waited", "busy_ms", "waited_ms"),
    ]
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One entry of the metrics stream: the counts of a worker from `start` to `end`.

    `kind` is `work`, or `refusal` for refused tasks. `ran` and `waited` are histogram buckets. Times are
    unix seconds by the worker's clock.
    """

    id: str
    kind: str
    queue: str
    group: str | None
    worker: str | None
    agent: str | None
    start: float
    end: float
    counts: Mapping[str, int]
    ran: tuple[int, ...]
    waited: tuple[int, ...]
    busy_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a queue's group over the last `seconds`.

    `rate` is the number of tasks done per second, `attempts` the mean number of runs of a task done or
    buried, `busy` the mean number of handlers running at once. Refusals have no group.
    """

    queue: str
    group: str | None
    seconds: float
    counts: Mapping[str, int]
    rate: float
    attempts: float | None
    busy: float
    workers: int
    running: Durations | None
    waiting: Durations | None


def metrics(scope: Scope, since: str = "5m", queue: str | None = None) -> Op[list[Metrics]]:
    """Return metrics by queue and group since a time, an entry id, or a duration ago.

    Raises `NotFound` for a queue that does not exist and has no metrics.
    """
    if queue is not None:
        names.name("queue", queue)
    now = yield from server_time(scope)
    start = starting_at(since, now)
    samples = yield from recent(scope, start)
    begins = id_time(start)
    first = one_step(Command("XRANGE", scope.keys.metrics, "-", "+", "COUNT", 1))
    (oldest,) = (yield from or_empty(first, [])) or (None,)
    sample = None if oldest is None else _sample(oldest)
    if sample is not None and id_time(sample.id) > begins:
        # Earlier samples were trimmed, so the period begins with the oldest one left.
        begins = min(sample.start, id_time(sample.id)) if sample.start > 0 else id_time(sample.id)
    sums = summed(samples, max(now - begins, 1.0), queue)
    if queue is not None and not sums:
        yield from _must_exist(scope, queue)
    return sums


def summed(samples: Iterable[Sample], seconds: float, queue: str | None = None) -> list[Metrics]:
    """Return the totals of samples, sorted by queue and group."""
    sums: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if queue is None or sample.queue == queue:
            sums.setdefault((sample.queue, sample.group or ""), []).append(sample)
    return [_sum(sums[key], seconds) for key in sorted(sums)]


def recent(scope: Scope, start: str, most: int = 2 * BOUND, end: str = "+") -> Op[list[Sample]]:
    """Return the samples between two ids, oldest first: about the newest `most` of them."""
    samples: list[Sample] = []
    while len(samples) < most:
        older = Command("XREVRANGE", scope.keys.metrics, end, start, "COUNT", _PAGE)
        page = yield from or_empty(one_step(older), [])
        samples += [sample for sample in map(_sample, page) if sample is not None]
        if len(page) < _PAGE:
            break
        end = "(" + text(page[-1][0])
    return samples[::-1]


def each(
    scope: Scope, since: str = "5m", queue: str | None = None, *, follow: bool = False
) -> Generator[Step, Any, None]:
    """Emit the samples since a time, oldest first; with `follow`, wait for new ones.

    Raises `NotFound` for a queue that does not exist and has no samples, unless `follow` is set.
    """
    if queue is not None:
        names.name("queue", queue)
    now = yield from server_time(scope)
    start, after, emitted = starting_at(since, now), "", False
    while True:
        begin = f"({after}" if after else start
        newer = Command("XRANGE", scope.keys.metrics, begin, "+", "COUNT", _PAGE)
        page = yield from or_empty(one_step(newer), [])
        for entry in page:
            after = text(entry[0])
            sample = _sample(entry)
            if sample is not None and queue in (None, sample.queue):
                emitted = True
                yield Emit(sample)
        if len(page) == _PAGE:
            continue
        if not follow:
            break
        came = yield Wait(scope.keys.metrics, after or _before(start), _LONGEST_WAIT)
        if after and not came:
            yield from _still_there(scope, after)
    if queue is not None and not emitted:
        yield from _must_exist(scope, queue)


def _still_there(scope: Scope, after: str) -> Op[None]:
    """Raise `EpochMismatch` if the stream now ends before an entry that was already read."""
    newest = yield Command("XREVRANGE", scope.keys.metrics, "+", "-", "COUNT", 1)
    if not newest or position(text(newest[0][0])) < position(after):
        raise EpochMismatch(
            f"the metrics were read up to {after}, and now end before: the server went back in time",
            hint="follow them again from now on",
        )


def _must_exist(scope: Scope, queue: str) -> Op[None]:
    keys = scope.keys
    streams = [keys.queue(queue, priority) for priority in PRIORITIES]
    there = yield Command(
        "EXISTS", *streams, keys.delayed(queue), keys.after(queue), keys.stats(queue)
    )
    if not there:
        raise (yield from missing(scope, queue))


def _before(start: str) -> str:
    milliseconds, sequence = position(start)
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}-{2**64 - 1}" if milliseconds else "0-0"


def _sample(entry: Any) -> Sample | None:
    """Return an entry as a sample, or None if another program wrote it."""
    named = fields(entry[1] or [])
    if not named.get("queue"):
        return None
    return Sample(
        text(entry[0]),
        named.get("kind", "work"),
        named["queue"],
        named.get("group") or None,
        named.get("worker") or None,
        named.get("agent") or None,
        decimal(named.get("from")) / 1000,
        decimal(named.get("to")) / 1000,
        {
            name: int(value)
            for name, value in named.items()
            if name not in _OWN and is_number(value)
        },
        by_bucket(named.get("ran")),
        by_bucket(named.get("waited")),
        decimal(named.get("busy_ms")),
        decimal(named.get("waited_ms")),
    )


def decimal(value: str | None) -> float:
    """Return a field's number, or 0 if it is malformed."""
    whole, _, fraction = (value or "").partition(".")
    if not is_number(whole) or (fraction and not is_number(fraction)):
        return 0.0
    return float(f"{whole}.{fraction or 0}")


def by_bucket(value: str | None) -> tuple[int, ...]:
    """Return a field as histogram buckets, or () if it is malformed."""
    try:
        buckets = orjson.loads(value or "[]")
    except ValueError:
        return ()
    if not isinstance(buckets, list) or not all(isinstance(n, int) and n >= 0 for n in buckets):
        return ()
    return tuple(map(int, buckets))


def _sum(samples: list[Sample], seconds: float) -> Metrics:
    counts: dict[str, int] = {}
    ran, waited = Histogram(), Histogram()
    for sample in samples:
        for event, number in sample.counts.items():
            counts[event] = counts.get(event, 0) + number
        ran.merge(sample.ran, sample.busy_ms / 1000)
        waited.merge(sample.waited, sample.waited_ms / 1000)
    done = counts.get("processed", 0)
    settled = done + counts.get("dead", 0)
    runs = done + counts.get("failed", 0)
    return Metrics(
        samples[0].queue,
        samples[0].group,
        seconds,
        counts,
        done / seconds,
        runs / settled if settled else None,
        ran.total / seconds,
        len({sample.worker for sample in samples if sample.worker}),
        ran.durations(),
        waited.durations(),
    )
