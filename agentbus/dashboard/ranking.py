"""Ranks queues by trouble from a summary that the server computes for each queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.admin import letter_counts
from agentbus.core.stream import id_time, text
from agentbus.queues.ids import STREAMS
from agentbus.store.scope import server_time
from agentbus.store.steps import Batch, Script
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.admin.health.thresholds import Levels, Thresholds
    from agentbus.admin.health.worker_list import WorkerList
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Queues per script, which takes a few milliseconds of server time.
_PAGE = 100
# Limits of one script: undelivered entries counted one by one, and bytes.
_COUNTED, _READ = 1_000, 400_000
# The number of values per group in a reply, and readings before a group's oldest task is looked up
# again.
_FIELDS, _TRUSTED = 5, 16
# With more queues than this, only the first stream of a queue is read if its other streams were
# empty; every third reading reads all of them.
_MANY, _TURNS = 300, 3
# Maximum number of groups per request.
_BATCH = 500
# A queue has a stream for normal tasks if it has any stream.
_STREAMS = ("normal", *(one for one in STREAMS if one != "normal"))
TROUBLES = ("no worker", "late", "dead letters")


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The summary of a group of a queue (None if it has no group).

    `oldest` is the unix time at which the oldest undelivered task was published.
    """

    group: str | None
    backlog: int
    oldest: float | None
    held: int
    dead: int

    @property
    def due(self) -> int:
        """The number of tasks that are not delivered, or not finished."""
        return self.backlog + self.held


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The summary of a queue."""

    queue: str
    delayed: int
    blocked: int
    groups: tuple[GroupSummary, ...]

    @property
    def dead(self) -> int:
        """The number of its groups' dead letters that were neither replayed nor purged."""
        return sum(one.dead for one in self.groups)


def summaries(
    scope: Scope, queues: Sequence[str], letters_of: Callable[[str], str]
) -> Op[tuple[float, list[QueueSummary]]]:
    """Return the server's time and the summary of each queue that exists."""
    return Summaries(scope, letters_of).read(queues)


class Summaries:
    """Summaries of queues; those of unchanged queues are kept from the last reading."""

    def __init__(self, scope: Scope, letters_of: Callable[[str], str]) -> None:
        self._scope = scope
        self._letters_of = letters_of
        # By queue: the keys to read; the raw reply, the numbers of dead letters and the summary;
        # and, if all tasks are in one stream, the position of a group and the oldest task after it.
        self._keys: dict[str, tuple[str, ...]] = {}
        self._made: dict[str, tuple[list[Any], list[int], QueueSummary]] = {}
        self._place_of: dict[str, tuple[bytes, bytes]] = {}
        # By queue: the server's reply about the groups of its first stream.
        self._groups_of: dict[str, Any] = {}
        # The number of readings, and the start times of the oldest readings still in use.
        self._readings = 0
        self._began: list[float] = []
        # True if there are too many queues to read each in full every time.
        self.many = False

    def read(self, queues: Sequence[str]) -> Op[tuple[float, list[QueueSummary]]]:
        """Return the server's time and the summary of each queue that exists."""
        unchanged = yield from self._unchanged(queues)
        now, rows = yield from self._rows(queues, unchanged)
        now = now or (yield from server_time(self._scope))
        wanted: list[tuple[str, ...]] = []
        boxes = []
        for queue, row in rows:
            where = self._letters_of(queue)
            named = [text(name) for name in row[3::_FIELDS] if name != b""]
            boxes.append(len(named))
            for name in named:
                wanted += letter_counts.requests(self._scope.keys, where, name)
        counts = iter((yield from in_batches(wanted)))
        found = [self._made[queue][2] for queue in unchanged]
        for (queue, row), number in zip(rows, boxes, strict=True):
            dead = [letter_counts.left(counts) for _ in range(number)]
            made = self._made.get(queue)
            if made is None or made[0] != row or made[1] != dead:
                made = self._made[queue] = row, dead, _summary(queue, row, dead)
            found.append(made[2])
        if len(self._made) > 2 * len(found):
            self._made = {one.queue: self._made[one.queue] for one in found}
            self._place_of, self._keys, self._groups_of = {}, {}, {}
        return now, found

    @property
    def age(self) -> float:
        """The seconds since the oldest summary was read."""
        return max(0.0, self._scope.monotonic() - min(self._began, default=float("-inf")))

    def _unchanged(self, queues: Sequence[str]) -> Op[set[str]]:
        """Return the unchanged queues, if there are many: their groups have not changed.

        Queues whose turn it is to be read in full are excluded. This check costs the server a fifth
        of the script's time.
        """
        self._readings += 1
        self.many = len(queues) > _MANY
        if not self.many:
            return set()
        asked = [
            queue
            for number, queue in enumerate(queues)
            if self._is_brief(queue, number) and self._place(queue, number)
        ]
        found = set()
        for at in range(0, len(asked), _BATCH):
            page = asked[at : at + _BATCH]
            replies = yield Batch([("XINFO", "GROUPS", self._keys_of(one)[0]) for one in page])
            for queue, reply in zip(page, replies, strict=True):
                # Without a lag, the server does not know the number of undelivered entries.
                if reply == self._groups_of.get(queue) and queue in self._made and _lags(reply):
                    found.add(queue)
                self._groups_of[queue] = reply
        return found

    def _is_brief(self, queue: str, number: int) -> bool:
        """Return whether only the first stream of a queue is read this time."""
        return (number + self._readings) % _TURNS > 0 and queue in self._place_of

    def _rows(
        self, queues: Sequence[str], unchanged: set[str]
    ) -> Op[tuple[float, list[tuple[str, list[Any]]]]]:
        now = 0.0
        rows: list[tuple[str, list[Any]]] = []
        began = self._scope.monotonic()
        every = _TURNS if self.many else 1
        left = [(number, queue) for number, queue in enumerate(queues) if queue not in unchanged]
        for at in range(0, len(left), _PAGE):
            page = left[at : at + _PAGE]
            asked: list[str] = []
            places = []
            for number, queue in page:
                keys, place = self._keys_of(queue), self._place(queue, number)
                brief = self.many and self._is_brief(queue, number)
                asked += keys[:1] if brief else keys
                places.append(b"~" + place if brief else place)
            time, *found = yield Script(
                "sum_backlogs", asked, (len(_STREAMS), _COUNTED, _READ, *places)
            )
            now = time / 1000
            for (_, queue), row in zip(page, found, strict=True):
                self._learn(queue, row)
                if any(row[:3]):
                    rows.append((queue, row))
        self._began = [*self._began[1 - every :], began] if every > 1 else [began]
        return now, rows

    def _place(self, queue: str, number: int) -> bytes:
        """Return the position before the oldest known task; sometimes b'', as it may be gone."""
        place, oldest = self._place_of.get(queue, (b"", b""))
        return place if oldest and (number + self._readings) % _TRUSTED else b""

    def _learn(self, queue: str, row: list[Any]) -> None:
        """Put the known oldest task into a row, and remember that of the first group."""
        for at in range(3, len(row), _FIELDS):
            if row[at + 2] == b"=":
                row[at + 2] = self._place_of[queue][1]
        if len(row) > 3 and row[3 + 4] != b"":
            self._place_of[queue] = row[3 + 4], row[3 + 2]
        else:
            self._place_of.pop(queue, None)

    def _keys_of(self, queue: str) -> tuple[str, ...]:
        found = self._keys.get(queue)
        if found is None:
            keys = self._scope.keys
            found = self._keys[queue] = (
                *(keys.queue(queue, priority) for priority in _STREAMS),
                *(keys.delayed(queue), keys.after(queue)),
            )
        return found


class Ranking:
    """The queues of a project, ordered by trouble."""

    def __init__(
        self, scope: Scope, letters_of: Callable[[str], str], thresholds: Thresholds
    ) -> None:
        self.summaries = Summaries(scope, letters_of)
        self._thresholds = thresholds
        self._levels: dict[str, tuple[Levels, Levels]] = {}

    def read(self, queues: Sequence[str], workers: WorkerList) -> Op[list[QueueSummary]]:
        """Return the summaries of queues, ordered by trouble, due tasks, oldest task and name."""
        now, found = yield from self.summaries.read(queues)
        return sorted(found, key=lambda one: (self._key(one, workers, now), one.queue))

    def trouble(self, queue: str, one: GroupSummary, unserved: bool, now: float) -> str | None:
        """Return a group's worst trouble, one of `TROUBLES`; `unserved` if no worker is live."""
        if unserved:
            return TROUBLES[0]
        levels = self._levels.get(queue)
        if levels is None:
            levels = self._levels[queue] = (
                self._thresholds.levels("starving", queue),
                self._thresholds.levels("lag", queue),
            )
        waited = one.oldest is not None and levels[0].crossed(now - one.oldest)
        if waited or levels[1].crossed(one.backlog):
            return TROUBLES[1]
        return TROUBLES[2] if one.dead else None

    def _key(self, one: QueueSummary, workers: WorkerList, now: float) -> tuple[float, ...]:
        troubles = (
            self.trouble(one.queue, group, _unserved(one.queue, group, workers), now)
            for group in one.groups
        )
        worst = (9 if trouble is None else TROUBLES.index(trouble) for trouble in troubles)
        return (
            min(worst, default=9),
            -max((group.due for group in one.groups), default=0),
            min((group.oldest or now for group in one.groups), default=now),
            -one.dead,
            -one.delayed,
        )


def _unserved(queue: str, one: GroupSummary, workers: WorkerList) -> bool:
    """Return whether tasks of a group are due and no worker is live."""
    if workers.alive(queue, one.group):
        return False
    if workers.of(queue, one.group):
        return one.due > 0
    # A summary does not list consumers: an unregistered one may be processing the held tasks.
    return one.backlog > 0 and not one.held


def _lags(groups: Any) -> bool:
    """Return whether the server knows the lag of each group of a stream."""
    return isinstance(groups, list) and bool(groups) and all(None not in one for one in groups)


def _summary(queue: str, row: list[Any], dead: Sequence[int]) -> QueueSummary:
    groups, counts = [], iter(dead)
    for at in range(3, len(row), _FIELDS):
        name, backlog, oldest, held, _ = row[at : at + _FIELDS]
        since = id_time(text(oldest)) if oldest else None
        number = next(counts) if name != b"" else 0
        groups.append(GroupSummary(text(name) or None, backlog, since, held, number))
    return QueueSummary(queue, row[1], row[2], tuple(groups))
