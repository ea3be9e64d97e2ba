"""The tasks that are published: some are poison, fail at first, come late, or keep an order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentbus.queues.ids import PRIORITIES

QUEUE = "work"
GROUP = "default"
ATTEMPTS = 4
# The policies of the workers, and the file that has them.
POLICIES, CONFIG = "queues:\n  '*': {record_attempts: 1000000}\n", "agentbus.yaml"
# Operations in the histories of publisher and workers; `life` is the start of a process.
PUBLISH, LIFE, RUN, ACK = "publish", "life", "run", "ack"

_LOT = 25
_FLAKY = 0.03
# Beyond those asked for, there are half as many, and this many besides.
_SPARE = 2500
# The tasks of a lot that are published together; the last one is published alone.
_TOGETHER = _LOT - 1


def by_hand(task: int) -> bool:
    """Tell whether a task's handler acknowledges it itself, and so sees the answer."""
    return task % 2 == 1


class Publication(NamedTuple):
    """What one call publishes: tasks `first` to `last`, and how."""

    number: int
    first: int
    payloads: list[dict[str, int]]
    priority: str = "normal"
    delay: float | None = None
    ordering_key: str | None = None

    @property
    def last(self) -> int:
        """The number of the last task."""
        return self.first + len(self.payloads) - 1


class TaskPlan:
    """The tasks of one run: the same for the same seed, in each process."""

    def __init__(self, seed: int, tasks: int, poison: int, *, plain: bool = False) -> None:
        """`plain` tasks are all alike, but for the poison.

        There are more than `tasks`, for faults that find no worker at work.
        """
        self.asked = tasks
        self.number = tasks + tasks // 2 + _SPARE
        self.plain = plain
        chance = random.Random(seed)
        self.poison = frozenset(chance.sample(range(tasks), poison))
        self._seed = seed

    @property
    def size(self) -> int:
        """How many publications, two a lot, hold the tasks asked for."""
        return 2 * -(-self.asked // _LOT)

    def publications(self, start: int = 0) -> Iterator[Publication]:
        """Yield all publications from one on, by its number."""
        for number in range(start, 2 * -(-self.number // _LOT)):
            yield self._publication(number)

    def _publication(self, number: int) -> Publication:
        """Most tasks go at once, at any priority, and the last of a lot alone, late or in order."""
        chance = random.Random(f"{self._seed} {number}")
        lot, alone = divmod(number, 2)
        first, size = (lot * _LOT + _TOGETHER, 1) if alone else (lot * _LOT, _TOGETHER)
        made = Publication(
            number, first, [self._payload(task, chance) for task in range(first, first + size)]
        )
        if self.plain:
            return made
        if not alone:
            return made._replace(priority=chance.choice(PRIORITIES))
        if chance.random() < 0.5:
            return made._replace(delay=chance.random())
        return made._replace(ordering_key=chance.choice("abc"))

    def _payload(self, task: int, chance: random.Random) -> dict[str, int]:
        found: dict[str, Any] = {"i": task}
        if task in self.poison:
            found["poison"] = 1
        elif not self.plain and chance.random() < _FLAKY:
            found["flaky"] = chance.choice((1, 1, 2))
        return found
