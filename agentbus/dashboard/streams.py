"""Follows the channel and the metrics stream between snapshots, reading each entry once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from agentbus.admin.metrics_reader import recent
from agentbus.coordination.overhear import heard, written
from agentbus.core.stream import id_time, position, text
from agentbus.dashboard.figures import POINT, POINTS
from agentbus.dashboard.history import MetricsRange
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, Wait, one_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentbus.admin.metrics_reader import Sample
    from agentbus.coordination.message import Message
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds for which single samples are kept, and the maximum number that is read at once, the
# newest.
_KEPT, _MOST = 60.0, 20_000
# After this many seconds without samples, check whether the stream has begun again.
_QUIET = 10.0
# Maximum number of messages that are read at once.
_AT_ONCE = 1_000


class ChannelTail:
    """The part of the channel after the last snapshot that was shown."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._tail = ""
        self._added = 0
        # Messages that were read but not shown yet, and the number of messages that were skipped.
        self._read: list[Message] = []
        self._missed = 0

    def read(self, most: int) -> Op[tuple[list[Message], int]]:
        """Return the newest `most` new messages, oldest first, and the number of other new ones.

        The first call returns the newest messages of the channel, and 0.
        """
        found, missed = yield from self._since(most)
        self._read += found
        self._missed += missed
        if missed:
            # Drop the messages before the gap, which would appear to follow it.
            self._missed += len(self._read) - len(found)
            self._read = found
        elif (over := len(self._read) - most) > 0:
            self._missed += over
            del self._read[:over]
        return [*self._read], self._missed

    def shown(self) -> None:
        """Discard the messages read so far: a complete snapshot has shown them."""
        self._read, self._missed = [], 0

    def _since(self, most: int) -> Op[tuple[list[Message], int]]:
        channel = self._scope.keys.channel
        (reply,) = yield Batch([("XINFO", "STREAM", channel)])
        if not isinstance(reply, list):
            self._tail, self._added = "0-0", 0
            return [], 0
        named = {reply[i]: reply[i + 1] for i in range(0, len(reply), 2)}
        last, added = text(named[b"last-generated-id"]), int(named.get(b"entries-added", 0))
        first, tail = not self._tail, self._tail or "0-0"
        if position(last) < position(tail) or added < self._added:
            # The server has lost data, or the project was cleared.
            tail, self._added = "0-0", 0
        elif last == tail:
            return [], 0
        read = Command("XREVRANGE", channel, last, f"({tail}", "COUNT", most)
        entries = yield from or_empty(one_step(read), [])
        came = len(entries) if first else max(len(entries), added - self._added)
        self._tail, self._added = last, added
        found = [heard(text(entry), written(flat)) for entry, flat in reversed(entries)]
        return found, came - len(entries)


def channel_end(scope: Scope) -> Op[str]:
    """Return the id of the newest message of the channel, or `0-0`."""
    newest: Any = yield from or_empty(
        one_step(Command("XREVRANGE", scope.keys.channel, "+", "-", "COUNT", 1)), []
    )
    return text(newest[0][0]) if newest else "0-0"


def channel_past(
    scope: Scope, after: str, limit: int, wait: float
) -> Op[tuple[list[Message], int]]:
    """Return the newest `limit` messages after an id, oldest first, and the number of others.

    Waits up to `wait` seconds for the first one.
    """
    channel = scope.keys.channel
    if wait:
        entries = yield Wait(channel, after, wait, _AT_ONCE)
    else:
        entries = yield Command("XRANGE", channel, f"({after}", "+", "COUNT", _AT_ONCE)
    kept = entries[-limit:]
    return [heard(text(entry), written(flat)) for entry, flat in kept], len(entries) - len(kept)


class MetricsTail:
    """The samples of the last minute, and the tasks done in ten minutes, by queue and group."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._after = ""
        self._quiet_since = 0.0
        self._samples: deque[Sample] = deque()
        self._by_queue: dict[str, deque[Sample]] = {}
        # The tasks done in all of these samples, the time since which no sample is missing, and the
        # seconds that the samples cover.
        self._sum, self._whole_from, self._seconds = 0, 0.0, _KEPT
        self._done: dict[tuple[str, str | None], dict[int, int]] = {}
        self._ranges = {"1h": MetricsRange(scope)}
        self._oldest = 0

    def read(self, now: float) -> Op[None]:
        """Read the new samples; `now` is the server's time."""
        begins = f"{max(0, round((now - POINT * POINTS) * 1000))}-0"
        read = yield from recent(self._scope, f"({self._after}" if self._after else begins, _MOST)
        # On an `AsyncBus`, a concurrent call may have read the same samples.
        known = position(self._after) if self._after else (-1, 0)
        found = [one for one in read if position(one.id) > known]
        for sums in self._ranges.values():
            sums.add(found, begins if len(read) < _MOST else read[0].id)
        if len(read) >= _MOST and position(read[0].id) > known:
            # Samples between these and the earlier ones were not read.
            self._forget_samples()
            self._whole_from = id_time(read[0].id)
        if found:
            self._after, self._quiet_since = found[-1].id, now
        elif self._after and now - self._quiet_since > _QUIET:
            yield from self._look_again()
            self._quiet_since = now
        for one in found:
            if done := one.counts.get("processed", 0):
                points = self._done.setdefault((one.queue, one.group), {})
                at = int(id_time(one.id) // POINT)
                points[at] = points.get(at, 0) + done
            self._sum += done
            self._samples.append(one)
            self._by_queue.setdefault(one.queue, deque()).append(one)
        self._drop_old(now)
        self._seconds = min(_KEPT, max(1.0, now - self._whole_from))

    def range(self, wanted: str, now: float) -> MetricsRange:
        """Return the sums of a range, which are kept from its first use on."""
        if wanted not in self._ranges:
            milliseconds, sequence = position(self._after or f"{round(now * 1000)}-0")
            self._ranges[wanted] = MetricsRange(
                self._scope, wanted, f"{milliseconds}-{sequence + 1}"
            )
        return self._ranges[wanted]

    def _forget_samples(self) -> None:
        self._sum, self._whole_from = 0, 0.0
        self._samples.clear()
        self._by_queue.clear()

    def _drop_old(self, now: float) -> None:
        while self._samples and id_time(self._samples[0].id) < now - _KEPT:
            one = self._samples.popleft()
            self._sum -= one.counts.get("processed", 0)
            of_queue = self._by_queue[one.queue]
            of_queue.popleft()
            if not of_queue:
                del self._by_queue[one.queue]
        oldest = int(now // POINT) - POINTS
        if oldest == self._oldest:
            return
        self._oldest = oldest
        for key in [*self._done]:
            points = {at: n for at, n in self._done[key].items() if at > oldest}
            if points:
                self._done[key] = points
            else:
                del self._done[key]

    def since(self, begins: float, queues: Iterable[str]) -> tuple[Iterator[Sample], float]:
        """Return these queues' samples since a unix time, and the seconds that they cover.

        They cover a minute at most, and less if more samples arrived than one call reads.
        """
        found = (
            one
            for queue in queues
            for one in self._by_queue.get(queue, ())
            if id_time(one.id) >= begins
        )
        return found, self._seconds

    @property
    def rate(self) -> float:
        """The tasks done per second over the last minute."""
        return self._sum / self._seconds

    def points(self, queue: str, group: str | None, now: float) -> tuple[float, ...]:
        """Return the tasks done per second at each point, oldest first."""
        found = self._done.get((queue, group), {})
        last = int(now // POINT)
        return tuple(found.get(at, 0) / POINT for at in range(last - POINTS + 1, last + 1))

    def _look_again(self) -> Op[None]:
        """Start again if the stream now ends before an entry already read: the server lost data."""
        newest: Any = yield from or_empty(
            one_step(Command("XREVRANGE", self._scope.keys.metrics, "+", "-", "COUNT", 1)), []
        )
        if not newest or position(text(newest[0][0])) < position(self._after):
            self._after = ""
            self._forget_samples()
            self._done.clear()
            self._ranges = {"1h": MetricsRange(self._scope)}
