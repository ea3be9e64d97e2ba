"""A worker's metrics: counts and duration histograms, flushed to the metrics stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.core.errors import AgentBusError, OutcomeUnknown
from agentbus.store.driver import rest
from agentbus.store.steps import Both, LinkDown, Script, ServerReply

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Once, Op, Step


T = TypeVar("T")

# Events that a flush adds to the queue's counters. The scripts count all others, because only the
# server knows whether a task still belonged to this worker.
_COUNTED_HERE = ("received", "failed")
# Upper bounds of the buckets in seconds: 1 ms, doubled until above one hour. A final bucket counts
# longer durations.
BOUNDS: tuple[float, ...] = tuple(0.001 * (1 << power) for power in range(23))
# Approximate maximum length of the metrics stream.
BOUND = 100_000
VERSION = 1
# Seconds after which a flush is not resent; the server remembers its token for 300 seconds.
_KNOWN_FOR = 240.0
# Seconds without an entry after which a worker that holds tasks writes one without counts: archives
# have no other trace of its heartbeats.
HEARTBEAT = 60.0


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations in seconds: their count, mean and percentiles.

    The percentiles come from buckets whose bounds double, so they are exact within a factor of 2 from
    1 ms to 70 minutes. A lower one only says that it is at most 1 ms, and the highest, 4,194.304 s, that it
    is at least that.
    """

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


class Histogram:
    """Counts of durations in buckets whose bounds double."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, number: int, seconds: float) -> None:
        """Count `number` durations of `seconds` each; negative ones (a clock was set back) count as 0."""
        seconds = max(seconds, 0.0)
        self.buckets[bucket(seconds)] += number
        self.total += number * seconds

    def merge(self, buckets: Sequence[int], total: float) -> None:
        """Add the counts of another histogram, which may lack empty buckets at the end."""
        for at, number in enumerate(buckets[: len(self.buckets)]):
            self.buckets[at] += number
        self.total += total

    def trimmed(self) -> list[int]:
        """Return the buckets without the empty ones at the end."""
        end = len(self.buckets)
        while end and not self.buckets[end - 1]:
            end -= 1
        return self.buckets[:end]

    def percentile(self, share: float) -> float:
        """Return the duration that a share (0 to 1) of all did not exceed, interpolated in its bucket."""
        rank = share * sum(self.buckets)
        below = 0
        for at, number in enumerate(self.buckets):
            if number and below + number >= rank:
                if at == len(BOUNDS):
                    break
                low = BOUNDS[at - 1] if at else 0.0
                return low + (BOUNDS[at] - low) * (rank - below) / number
            below += number
        return BOUNDS[-1]

    def durations(self) -> Durations | None:
        """Return the summary, or None if nothing was counted."""
        count = sum(self.buckets)
        if not count:
            return None
        return Durations(
            count,
            self.total / count,
            *(self.percentile(share) for share in (0.5, 0.95, 0.99)),
        )


def bucket(seconds: float) -> int:
    """Return the index of a duration's bucket."""
    fraction, power = math.frexp(seconds * 1000)
    # Upper bounds are inclusive.
    return max(0, min(power - (fraction == 0.5), len(BOUNDS)))


def _conclude(flush: Op[bool], step: Step, reply: Any) -> Op[None]:
    """End a flush whose first step got a reply or an error."""
    try:
        if not isinstance(reply, ServerReply):
            yield from rest(flush, flush.send(reply))
        elif reply.code == "NOSCRIPT":
            yield from rest(flush, step)
        else:
            flush.throw(reply)
    except (StopIteration, LinkDown, ServerReply, AgentBusError):
        return


class _Counts:
    """The counts since `began`, a unix time."""

    __slots__ = ("began", "events", "ran", "waited")

    def __init__(self, began: float) -> None:
        self.began = began
        self.events: dict[str, int] = {}
        self.ran = Histogram()
        self.waited = Histogram()

    def add(self, later: _Counts) -> None:
        for event, number in later.events.items():
            self.events[event] = self.events.get(event, 0) + number
        self.ran.merge(later.ran.buckets, later.ran.total)
        self.waited.merge(later.waited.buckets, later.waited.total)

    def is_empty(self) -> bool:
        return not (any(self.events.values()) or any(self.ran.buckets) or any(self.waited.buckets))


class Tally:
    """The counts of one worker since its last flush; thread-safe.

    A worker flushes it every second, and once more at its end. `held` returns the tasks that it holds.
    """

    def __init__(
        self,
        scope: Scope,
        queue: str,
        group: str,
        worker: str,
        held: Callable[[], Collection[object]] = tuple,
    ) -> None:
        self._scope = scope
        self._queue = queue
        self._group = group
        self._worker = worker
        self._held = held
        self._written_at = scope.monotonic()
        self._lock = Lock()
        self._now = _Counts(scope.now())
        self._flushing = False
        # An unanswered flush, to be resent with the same token.
        self._unsure: tuple[Once, list[Arg], float] | None = None

    def note(self, event: str, number: int = 1) -> None:
        """Count an event of `number` tasks."""
        with self._lock:
            events = self._now.events
            events[event] = events.get(event, 0) + number

    def count_runs(self, number: int, seconds_each: float) -> None:
        """Count runs of a handler that took `seconds_each`."""
        with self._lock:
            self._now.ran.add(number, seconds_each)

    def count_waits(self, number: int, seconds_each: float) -> None:
        """Count tasks that waited `seconds_each` from publication to their handler's start."""
        with self._lock:
            self._now.waited.add(number, seconds_each)

    def age(self, entry_id: bytes) -> float:
        """Return the age of an entry in seconds, by the server's clock."""
        published = int(entry_id.partition(b"-")[0]) / 1000
        return max(0.0, self._scope.server_now() - published)

    def beside(self, op: Op[T]) -> Op[T]:
        """Run an operation, and flush these counts together with its first script, in the same exchange.

        If the counts cannot be written, the operation is not affected, and the next flush sends them.
        """
        flush = self.flush()
        try:
            step = next(op)
            while not isinstance(step, Script):
                try:
                    reply = yield step
                except BaseException as failure:  # noqa: BLE001 (passed on to the operation)
                    step = op.throw(failure)
                else:
                    step = op.send(reply)
            counts = next(flush, None)
            if isinstance(counts, Script):
                both = Both(step, counts)
                try:
                    reply, written = yield both
                except BaseException as failure:  # noqa: BLE001 (passed on to the operation)
                    # The flush may have been executed: the next flush resends it with its token.
                    step.sendings = both.sendings
                    step = op.throw(failure)
                else:
                    step.sendings = counts.sendings = both.sendings
                    yield from _conclude(flush, counts, written)
                    step = op.send(reply)
        except StopIteration as result:
            value: T = result.value
            return value
        finally:
            flush.close()
        return (yield from rest(op, step))

    def flush(self) -> Op[bool]:
        """Append an entry to the metrics stream and increment the counters; return whether it did.

        Atomic. Counts that could not be sent remain for the next flush; the server recognizes a retry and
        counts it once. Without counts, it writes an entry only if a heartbeat is due. During another flush,
        this does nothing.
        """
        with self._lock:
            if self._flushing:
                return False
            self._flushing = True
        try:
            resent = yield from self._resend()
            return (yield from self._send()) or resent
        finally:
            self._flushing = False

    def _resend(self) -> Op[bool]:
        if self._unsure is None:
            return False
        once, argv, began = self._unsure
        if self._scope.monotonic() - began > _KNOWN_FOR:
            # The server may have forgotten the token: drop these counts rather than count them
            # twice.
            self._unsure = None
            return False
        yield self._step(once, argv)
        self._unsure, self._written_at = None, self._scope.monotonic()
        return True

    def _send(self) -> Op[bool]:
        now = self._scope.now()
        with self._lock:
            counts, self._now = self._now, _Counts(now)
        if counts.is_empty() and not self._is_heartbeat_due():
            return False
        once = self._scope.once()
        argv = self._words(once, counts, now)
        self._unsure = once, argv, self._scope.monotonic()
        step = self._step(once, argv)
        try:
            yield step
        except OutcomeUnknown:
            raise
        except Exception:
            # Nothing was written: merge these counts into the next flush.
            self._unsure = None
            with self._lock:
                counts.add(self._now)
                self._now = counts
            raise
        self._unsure, self._written_at = None, self._scope.monotonic()
        self._scope.free_slot(once, step)
        return True

    def _is_heartbeat_due(self) -> bool:
        silent = self._scope.monotonic() - self._written_at
        return silent >= HEARTBEAT and bool(self._held())

    def _step(self, once: Once, argv: list[Arg]) -> Script:
        keys = self._scope.keys
        return Script(
            "record_counts",
            (
                *(keys.metrics, keys.stats(self._queue)),
                *(keys.worked(self._queue, self._group), once.key, keys.queues),
            ),
            argv,
            writes=True,
        )

    def _words(self, once: Once, counts: _Counts, now: float) -> list[Arg]:
        events = {event: number for event, number in counts.events.items() if number}
        ran, waited = counts.ran, counts.waited
        entry: dict[str, Arg] = {
            "kind": "work",
            "version": VERSION,
            "queue": self._queue,
            "group": self._group,
            "worker": self._worker,
            "agent": self._scope.agent,
            "from": round(counts.began * 1000),
            "to": round(now * 1000),
            **events,
        }
        sums = dict(events)
        for name, spent, histogram in (("ran", "busy_ms", ran), ("waited", "waited_ms", waited)):
            if any(histogram.buckets):
                entry[name] = "[" + ",".join(map(str, histogram.trimmed())) + "]"
                entry[spent] = f"{histogram.total * 1000:.3f}"
                sums[spent] = round(histogram.total * 1000)
        here = [(event, sums[event]) for event in _COUNTED_HERE if event in sums]
        words: list[Arg] = [once.token, BOUND, self._queue]
        for pairs in (here, list(sums.items())):
            words.append(len(pairs))
            words += [word for pair in pairs for word in pair]
        return words + [word for pair in entry.items() for word in pair]
