"""Lag: how far consumers were behind the published tasks, and which workers vanished.

The archive counts published tasks, and workers count finished tasks, both exactly. The backlog at
the first row is unknown, and inferred from the lowest point. A worker counts as vanished if it held
tasks and its heartbeats ended while others continued.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from agentbus.pipeline.reports.aggregate import Figures, Row, moment
from agentbus.pipeline.reports.arithmetic import ordered, summed
from agentbus.pipeline.reports.entries import ENTRIES, arrived, slot_seconds
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.span import LENGTHS
from agentbus.pipeline.reports.work import GROUP, MOMENTS, WORK, WORKER, by_slot, by_worker, detail
from agentbus.queues.ids import taker
from agentbus.workers.metrics import HEARTBEAT

# A worker that held tasks and wrote no metrics for this long, while other workers did, counts as
# gone: a live one writes some at least every `HEARTBEAT` seconds.
SILENT_SECONDS = round(5 * HEARTBEAT)
_SETTLED = ("processed", "dead", "lost_tasks")
# Events after which a worker no longer holds a task that it had received.
_ENDED = ("processed", "retried", "dead", "stale", "duplicates", "cancelled", "released")
_LIFE = ("received", "reclaimed", "lost_tasks", *_ENDED)
_CRASHES = ("reclaimed", "lost", "stale", "vanished")
_BEHIND = (
    *("published", "settled", "backlog_before", "lag"),
    *("behind_ms", "highest", "highest_at"),
)
_AT = ("time", "published", "settled", "lag", "highest")
_WORKER = (
    *(*WORKER, "agent", "first", "last", "vanished", "held"),
    *("received", "processed", "reclaimed", "lost", "stale"),
)


@dataclass(frozen=True, slots=True)
class LagLevel:
    """A time slot of one group: tasks arrived and settled, in it and in total, and the lag."""

    slot: int
    published: int
    settled: int
    came: int
    gone: int
    lag: int


@dataclass(frozen=True, slots=True)
class LagHistory:
    """The slots of a queue and a group, in order.

    A queue whose groups have no metrics has the group None, without settled tasks. `backlog` is a
    lower bound of the tasks that waited before the first row, since more were settled than had
    arrived.
    """

    queue: str
    group: str | None
    backlog: int
    slots: Sequence[LagLevel]


# Maps (queue, group) to numbers by slot.
_BySlot: TypeAlias = "dict[tuple[str, str | None], dict[int, int]]"


def levels(figures: Figures) -> list[LagHistory]:
    """Return the levels of each queue and group: the slots in which tasks arrived or were done.

    A lag persists in times without arrivals or settled tasks, so the first and last slots of the
    span are included.
    """
    return figures.once(_levels)


def _levels(figures: Figures) -> list[LagHistory]:
    seconds = slot_seconds(figures.span)
    settled: _BySlot = defaultdict(dict)
    groups: dict[str, list[str | None]] = defaultdict(list)
    for row in by_slot(figures):
        key = (row["queue"], row["group"])
        if row["group"] is not None and row["slot"] is not None:
            if key not in settled:
                groups[row["queue"]].append(row["group"])
            settled[key][row["slot"]] = sum(row[event] or 0 for event in _SETTLED)
    came: _BySlot = {
        (queue, group): slots
        for queue, slots in arrived(figures).items()
        for group in groups.get(queue) or [None]
    }
    span = (figures.span.first, figures.span.last)
    ends = {int(at.timestamp()) // seconds for at in span if at is not None}
    keys = dict.fromkeys((*came, *settled))
    return [_level(key, came.get(key, {}), settled.get(key, {}), ends) for key in keys]


def _level(
    key: tuple[str, str | None],
    published: Mapping[int, int],
    settled: Mapping[int, int],
    ends: set[int],
) -> LagHistory:
    slots = sorted(published.keys() | settled.keys() | ends)
    came = list(itertools.accumulate(published.get(slot, 0) for slot in slots))
    gone = list(itertools.accumulate(settled.get(slot, 0) for slot in slots))
    backlog = max(0, *(there - here for here, there in zip(came, gone, strict=True)))
    found = [
        LagLevel(slot, published.get(slot, 0), settled.get(slot, 0), c, g, c - g + backlog)
        for slot, c, g in zip(slots, came, gone, strict=True)
    ]
    return LagHistory(*key, backlog, found)


def groups(figures: Figures) -> list[Row]:
    """Return the lag of each queue and group at the end, and at its highest.

    `behind_ms` is the age of the oldest unfinished task, rounded to a slot, if tasks are done in
    the order of arrival.
    """
    seconds, found = slot_seconds(figures.span), []
    end = max((one.slots[-1].slot for one in levels(figures)), default=0)
    for one in levels(figures):
        last = one.slots[-1]
        highest = max(one.slots, key=lambda level: level.lag)
        waiting = (each.slot for each in one.slots if each.came + one.backlog > last.gone)
        oldest = next(waiting, None)
        found.append(
            {
                "queue": one.queue,
                "group": one.group,
                "published": last.came,
                "settled": last.gone,
                "backlog_before": one.backlog,
                "lag": last.lag,
                "behind_ms": None if oldest is None else (end + 1 - oldest) * seconds * 1000,
                "highest": highest.lag,
                "highest_at": moment(highest.slot * seconds),
            }
        )
    return ordered(found, "-lag", "-highest", *GROUP)


def over_time(figures: Figures) -> tuple[list[Row], int]:
    """Return published and settled tasks and the lag at the end, by time, queue and group.

    Times without arrived, settled or waiting tasks are omitted. Returns the first rows and the
    number of others, since a lag may last for years.
    """
    each = [_times(figures, one) for one in levels(figures)]
    step = LENGTHS[figures.span.bucket]
    number = 0
    for times in each:
        for at, (row, until) in times.items():
            number += _shown(row) + ((until - at) // step - 1 if until > at + step else 0)
    rows = heapq.merge(*(_standing(times, step) for times in each), key=_place)
    first = list(itertools.islice(rows, MOMENTS))
    return first, number - len(first)


def _times(figures: Figures, one: LagHistory) -> dict[int, tuple[dict[str, Any], int]]:
    """Return the rows of a group's times with slots, and the time until which the lag lasts."""
    seconds, step = slot_seconds(figures.span), LENGTHS[figures.span.bucket]
    rows: dict[int, dict[str, Any]] = {}
    for level in one.slots:
        at = level.slot * seconds // step * step
        if at not in rows:
            rows[at] = {"queue": one.queue, "group": one.group, "time": moment(at)}
            rows[at] |= {"published": 0, "settled": 0, "highest": level.lag}
        row = rows[at]
        row["published"] += level.published
        row["settled"] += level.settled
        row["lag"] = level.lag
        row["highest"] = max(row["highest"], level.lag)
    until = [*list(rows)[1:], 0]
    return {
        at: (row, end if row["lag"] > 0 else 0)
        for (at, row), end in zip(rows.items(), until, strict=True)
    }


def _standing(times: Mapping[int, tuple[dict[str, Any], int]], step: int) -> Iterator[Row]:
    """Yield the rows of a group, with an additional row for each time in which a lag lasts."""
    for at, (row, until) in times.items():
        if _shown(row):
            yield row
        for later in range(at + step, until, step):
            stands = {"published": 0, "settled": 0, "highest": row["lag"]}
            yield {**row, **stands, "time": moment(later)}


def _shown(row: Row) -> bool:
    return bool(row["published"] or row["settled"] or row["highest"])


def _place(row: Row) -> tuple[Any, ...]:
    return row["time"], row["queue"], row["group"] is not None, row["group"] or ""


def _lives(figures: Figures) -> list[Row]:
    """Return each worker's figures from first to last entry, and whether it has vanished."""
    sums = summed(by_worker(figures), WORKER, _LIFE)
    lives: dict[tuple[Any, ...], dict[str, Any]] = {}
    # Any worker's entry shows that metrics continued.
    end = max((row["last"] for row in by_worker(figures) if row["last"] is not None), default=None)
    for row in by_worker(figures):
        key = tuple([row[name] for name in WORKER])
        if row["worker"] is None:
            continue
        one = lives.setdefault(key, {"agent": None, "first": row["first"], "last": row["last"]})
        one["agent"] = max((a for a in (one["agent"], row["agent"]) if a), default=None)
        if row["first"] is not None and row["last"] is not None:
            one["first"] = min(one["first"] or row["first"], row["first"])
            one["last"] = max(one["last"] or row["last"], row["last"])
    for key, one in lives.items():
        one |= {**dict(zip(WORKER, key, strict=True)), **sums[key]}
        ended = sum(one[event] for event in _ENDED)
        one["held"] = max(one["received"] - ended, 0)
        one["lost"] = one["lost_tasks"]
        silent = timedelta(seconds=SILENT_SECONDS)
        there = one["last"] is not None and end is not None
        # Programs that take tasks by hand have no heartbeats.
        beats = taker(one["worker"]) is None
        one["vanished"] = bool(there and beats and one["held"] and end - one["last"] > silent)
    return list(lives.values())


def workers(figures: Figures) -> list[Row]:
    """Return workers that vanished, reclaimed tasks, lost tasks, or settled tasks too late."""
    rows = [one for one in figures.once(_lives) if any(one[figure] for figure in _CRASHES)]
    return ordered(rows, "-vanished", "-held", "-lost", "-stale", "-reclaimed", *WORKER)


def history(figures: Figures) -> list[Row]:
    """Return the traces of crashes by queue, group and time: reclaimed, lost, stale, vanished."""
    seconds = slot_seconds(figures.span)
    rows: list[Row] = [
        {
            **{name: row[name] for name in (*GROUP, "reclaimed", "stale")},
            "lost": row["lost_tasks"],
            "vanished": 0,
            "time": figures.moment(row["slot"] * seconds),
        }
        for row in by_slot(figures)
        if row["slot"] is not None and (row["reclaimed"] or row["lost_tasks"] or row["stale"])
    ]
    nothing = dict.fromkeys(_CRASHES, 0)
    rows += [
        {
            **nothing,
            "vanished": 1,
            **{name: one[name] for name in GROUP},
            "time": figures.moment(int(one["last"].timestamp())),
        }
        for one in figures.once(_lives)
        if one["vanished"]
    ]
    keys = (*GROUP, "time")
    found = summed(rows, keys, _CRASHES)
    return ordered(
        ({**dict(zip(keys, key, strict=True)), **sums} for key, sums in found.items()),
        *("time", *GROUP),
    )


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of lag and crashes."""
    bucket = figures.span.bucket
    times, more = over_time(figures)
    behind = groups(figures)
    several = detail(behind)
    return (
        Table(
            "groups",
            "How far behind at the end",
            (*GROUP, *_BEHIND),
            behind,
            Chart("bar", "queue", ("lag", "highest"), detail=several),
            note="'backlog before' is inferred, as a lower bound: that many more tasks were settled than"
            " published. A queue without a group has no worker that wrote metrics. Tasks that were"
            " cancelled, skipped as duplicates or deleted do not count as settled, and stay in the lag."
            " 'behind' is the age of the oldest waiting task, if tasks are done in order.",
        ),
        Table(
            "times",
            f"Lag by {bucket}",
            (*GROUP, *_AT),
            times,
            Chart(
                *("line", "time", "highest", GROUP if several else "queue"),
                note="The chart shows 'highest'.",
            ),
            note="A lag that does not change is shown at each time until it does.",
            top=MOMENTS,
            more=more,
        ),
        Table(
            "workers",
            "Workers with losses",
            _WORKER,
            workers(figures),
            note=f"A worker that runs tasks writes metrics at least every {HEARTBEAT:.0f} seconds. It has"
            f" vanished if it held tasks and wrote none for {SILENT_SECONDS} seconds while others did."
            " Programs that take tasks by hand have no heartbeats, and never count as vanished.",
        ),
        Table(
            "crashes",
            f"Crashes by {bucket}",
            (*GROUP, "time", *_CRASHES),
            history(figures),
            Chart(
                *("stacked", "time", ("reclaimed", "lost", "stale")), note="The chart shows tasks."
            ),
            note="'vanished' counts workers, the others count tasks.",
            top=MOMENTS,
        ),
    )


REPORT = Report(
    "lag",
    "Lag and crashes",
    "How many tasks were not done at each time, which workers vanished while they held tasks, and which"
    " tasks were reclaimed, lost, or settled too late.",
    (ENTRIES, WORK),
    ("groups", "times", "workers", "crashes"),
    build,
    "No task was published or done in this time.",
)
