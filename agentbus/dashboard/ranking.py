"""Ranks queues by trouble from a summary that the server makes, without reading each queue's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.record import Record
from agentbus.core.stream import id_time, text
from agentbus.queues.ids import STREAMS
from agentbus.store.steps import Script
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.admin.health.worker_list import WorkerList
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Queues per script, which takes a few milliseconds of the server.
_PAGE = 100
# Limits of what the script counts itself: undelivered entries, and bytes.
_COUNTED, _READ = 1_000, 400_000
# Every queue has a stream for normal tasks, if any.
_STREAMS = ("normal", *(one for one in STREAMS if one != "normal"))
TROUBLES = ("no worker", "late", "dead letters")


class GroupSummary(Record):
    """The summary of a group of a queue (None if it has no group); `oldest` is an age in seconds."""

    group: str | None
    backlog: int
    oldest: float | None
    held: int
    dead: int

    @property
    def due(self) -> int:
        """The tasks that are not delivered, or not finished."""
        return self.backlog + self.held


class QueueSummary(Record):
    """The summary of a queue."""

    queue: str
    delayed: int
    dependent: int
    groups: tuple[GroupSummary, ...]

    @property
    def dead(self) -> int:
        """The dead letters of its groups."""
        return sum(one.dead for one in self.groups)


def summaries(
    scope: Scope, queues: Sequence[str], letters_of: Callable[[str], str]
) -> Op[tuple[float, list[QueueSummary]]]:
    """Return the server's time and the summary of each queue that exists."""
    keys, now = scope.keys, 0.0
    rows: list[tuple[str, list[Any]]] = []
    for at in range(0, len(queues), _PAGE):
        page = queues[at : at + _PAGE]
        asked = [
            key
            for queue in page
            for key in (
                *(keys.queue(queue, priority) for priority in _STREAMS),
                *(keys.delayed(queue), keys.after(queue)),
            )
        ]
        time, *found = yield Script("rank", asked, (len(_STREAMS), _COUNTED, _READ))
        now = time / 1000
        rows += zip(page, found, strict=True)
    boxes = [
        (queue, row[at]) for queue, row in rows for at in range(3, len(row), 4) if row[at] != b""
    ]
    counts = yield from in_batches(
        [("XLEN", keys.dead_letters(letters_of(queue), text(name))) for queue, name in boxes]
    )
    dead = {
        box: count if isinstance(count, int) else 0
        for box, count in zip(boxes, counts, strict=True)
    }
    return now, [
        QueueSummary(queue, row[1], row[2], tuple(_groups(queue, row, now, dead)))
        for queue, row in rows
        if any(row[:3])
    ]


def _groups(
    queue: str, row: list[Any], now: float, dead: Mapping[tuple[str, bytes], int]
) -> list[GroupSummary]:
    found = []
    for at in range(3, len(row), 4):
        name, backlog, oldest, held = row[at : at + 4]
        age = max(0.0, now - id_time(text(oldest))) if oldest else None
        found.append(
            GroupSummary(text(name) or None, backlog, age, held, dead.get((queue, name), 0))
        )
    return found


def trouble(
    queue: str, one: GroupSummary, thresholds: Thresholds, workers: WorkerList
) -> str | None:
    """Return the worst trouble of a group, one of `TROUBLES`."""
    if one.backlog and not one.held and not workers.alive(queue, one.group):
        return TROUBLES[0]
    waited = thresholds.levels("starving", queue).crossed(one.oldest or 0.0)
    if waited or thresholds.levels("lag", queue).crossed(one.backlog):
        return TROUBLES[1]
    return TROUBLES[2] if one.dead else None


def ranked(
    found: Sequence[QueueSummary], thresholds: Thresholds, workers: WorkerList
) -> list[QueueSummary]:
    """Return queues by trouble, then by what is due, the oldest task and the name."""

    def key(one: QueueSummary) -> tuple[float, ...]:
        worst = (
            TROUBLES.index(what) if (what := trouble(one.queue, group, thresholds, workers)) else 9
            for group in one.groups
        )
        return (
            min(worst, default=9),
            -max((group.due for group in one.groups), default=0),
            -max((group.oldest or 0.0 for group in one.groups), default=0.0),
            -one.dead,
            -one.delayed,
        )

    return sorted(found, key=lambda one: (key(one), one.queue))
