"""The last hour, day or week of a project and its queues, from the metrics stream."""

from __future__ import annotations

import operator
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.admin.metrics_reader import recent
from agentbus.core.stream import id_time
from agentbus.workers.metrics import BOUNDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.admin.metrics_reader import Sample
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.metrics import Durations

# Seconds per point of an hour, and its number of points; and the same for each range.
WIDTH, POINTS_KEPT = 60, 60
RANGES = {"1h": (WIDTH, POINTS_KEPT), "24h": (1_800, 48), "7d": (10_800, 56)}
# Maximum number of older samples per call: a thousand busy workers write as many in five seconds.
_SLICE = 5_000
_COUNTS = ("processed", "failed", "dead")
# Layout of a point's sums: the counts; then, for runs and for waits, the total in ms and the
# buckets.
_RAN = len(_COUNTS)
_WAITED = _RAN + 2 + len(BOUNDS)
_SUMS = _WAITED + 2 + len(BOUNDS)


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One part of a range, from the unix time `at` on: numbers per second.

    These are the tasks `done`, the runs that `failed`, and the tasks that became `dead`.

    `running` are the durations of handlers, `waiting` the times from publication to start; None if there
    are none.
    """

    at: float
    done: float
    failed: float
    dead: float
    running: Durations | None
    waiting: Durations | None


@dataclass(frozen=True, slots=True)
class History:
    """The last hour, day or week of the project, a queue or a group, oldest first; the last is incomplete.

    An hour has 60 points, a day 48 and a week 56. `since` is the unix time of the oldest sample that was
    read, None without samples; earlier points are 0. `complete` is true if no older samples are left to
    read. `running` and `waiting` combine all points.
    """

    queue: str | None
    group: str | None
    since: float | None
    complete: bool
    points: tuple[HistoryPoint, ...]
    running: Durations | None
    waiting: Durations | None


class MetricsRange:
    """The sums of a range's samples by point, for the project, each queue and each group.

    A range that is used later than others begins at the id `begins`, and reads older samples back.
    """

    def __init__(self, scope: Scope, wanted: str = "1h", begins: str = "") -> None:
        self._scope = scope
        self._width, self._kept = RANGES[wanted]
        self._project: dict[int, array[float]] = {}
        self._groups: dict[tuple[str, str | None], dict[int, array[float]]] = {}
        # The id from which samples are added; '' before the first call.
        self._from = begins
        self._since: float | None = None
        self._newest = 0
        self._complete = self._reading = False

    def clear(self) -> None:
        """Discard all sums: the stream has begun again."""
        self._project.clear()
        self._groups.clear()
        self._from, self._since, self._complete = "", None, False

    def add(self, found: Sequence[Sample], begins: str) -> None:
        """Add samples after the earlier ones; the first call has all samples from `begins` on."""
        self._from = self._from or begins
        self._count(found)
        if found and (newest := int(id_time(found[-1].id) // self._width)) != self._newest:
            self._newest = newest
            self._forget(newest - self._kept)

    def read_back(self, now: float) -> Op[None]:
        """Read at most 5,000 older samples, until the range is complete."""
        if self._reading or self._complete or not self._from:
            return
        first, before = f"{self._first(now) * self._width * 1000}-0", self._from
        self._reading = True
        try:
            found = yield from recent(self._scope, first, _SLICE, f"({before}")
        finally:
            self._reading = False
        if before == self._from:
            # The stream did not begin again during the read.
            self._count(found)
            self._complete = len(found) < _SLICE
            self._from = found[0].id if found else before

    def of(self, queue: str | None, group: str | None, now: float) -> History:
        """Return the range of the project, or of a queue, or of a group of it."""
        chosen = [self._project]
        if queue is not None:
            chosen = [
                minutes
                for (one, of), minutes in self._groups.items()
                if one == queue and group in (None, of)
            ]
        totals = Histogram(), Histogram()
        points = []
        for at in range(self._first(now), int(now // self._width) + 1):
            sums = array("f", bytes(4 * _SUMS))
            for minutes in chosen:
                if at in minutes:
                    sums = array("f", map(operator.add, sums, minutes[at]))
            begins = float(at * self._width)
            spent = max(1.0, min(float(self._width), now - begins))
            points.append(_point(begins, sums, spent, totals))
        return History(
            *(queue, group, self._since, self._complete, tuple(points)),
            *(total.durations() for total in totals),
        )

    def _count(self, found: Sequence[Sample]) -> None:
        if found:
            oldest = id_time(found[0].id)
            self._since = oldest if self._since is None else min(self._since, oldest)
        for one in found:
            at = int(id_time(one.id) // self._width)
            for minutes in (self._project, self._groups.setdefault((one.queue, one.group), {})):
                sums = minutes.get(at)
                if sums is None:
                    sums = minutes[at] = array("f", bytes(4 * _SUMS))
                for i, name in enumerate(_COUNTS):
                    sums[i] += one.counts.get(name, 0)
                sums[_RAN] += one.busy_ms
                sums[_WAITED] += one.waited_ms
                for start, buckets in ((_RAN, one.ran), (_WAITED, one.waited)):
                    for i, number in enumerate(buckets[: len(BOUNDS) + 1], start + 1):
                        sums[i] += number

    def _first(self, now: float) -> int:
        return int(now // self._width) - self._kept + 1

    def _forget(self, last: int) -> None:
        """Discard the minutes up to and including a minute."""
        for minutes in (self._project, *self._groups.values()):
            for at in [one for one in minutes if one <= last]:
                del minutes[at]
        for key in [key for key, minutes in self._groups.items() if not minutes]:
            del self._groups[key]


def _point(
    at: float, sums: Sequence[float], seconds: float, totals: tuple[Histogram, Histogram]
) -> HistoryPoint:
    """Return a point, and add its durations to the totals."""
    durations = []
    for total, start in zip(totals, (_RAN, _WAITED), strict=True):
        one = Histogram()
        buckets = [round(number) for number in sums[start + 1 : start + 2 + len(BOUNDS)]]
        for histogram in (one, total):
            histogram.merge(buckets, sums[start] / 1000)
        durations.append(one.durations())
    done, failed, dead = (number / seconds for number in sums[: len(_COUNTS)])
    return HistoryPoint(at, done, failed, dead, *durations)
