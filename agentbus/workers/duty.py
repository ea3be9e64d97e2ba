"""What the ways in which a worker runs its handlers share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.queues.delivery import Delivery
    from agentbus.workers.acker import Settling
    from agentbus.workers.fetcher import Intake
    from agentbus.workers.metrics import Tally
    from agentbus.workers.pause import Gate


class Duty:
    """One worker's limits, and whom it turns to.

    `concurrency` is how many tasks run at once, `most` how many it may hold, `limit` after how many that
    are done it ends. `visibility` is in seconds.
    """

    def __init__(
        self,
        task: Consumption,
        intake: Intake,
        settling: Settling,
        tally: Tally,
        wrap: Callable[[Taken], Delivery],
        gate: Gate,
        stopping: Callable[[], bool],
        *,
        concurrency: int,
        most: int,
        limit: int | None,
        visibility: float,
    ) -> None:
        self.task = task
        self.intake = intake
        self.settling = settling
        self.tally = tally
        self.wrap = wrap
        self.gate = gate
        self.stopping = stopping
        self.concurrency = concurrency
        self.most = most
        self.limit = limit
        self.visibility = visibility

    @property
    def left(self) -> float:
        """How many more tasks are to be done."""
        return math.inf if self.limit is None else max(0, self.limit - self.settling.done)

    @property
    def over(self) -> bool:
        """Whether nothing more is to begin."""
        return self.stopping() or self.left == 0

    @property
    def halted(self) -> bool:
        """Whether nothing more is to begin for now."""
        return self.over or self.gate.held

    def allowed(self, take: Callable[[], list[Taken]]) -> list[Taken]:
        """Take tasks if the gate is open; what was taken while it shut is given back."""
        if not self.gate.enter():
            return []
        found: list[Taken] = []
        free = False
        try:
            found = take()
        finally:
            free = self.gate.leave()
        if not free:
            self.give_back(found)
            return []
        return found

    def take(
        self, count: int, done: dict[str, list[bytes]] | None = None, took: float = 0.0
    ) -> list[Taken]:
        """Acknowledge what was done, in any case, and take new tasks, if the gate is open."""
        if count and self.gate.enter():
            found: list[Taken] = []
            free = False
            try:
                found = self.intake.new(count, done, took)
            finally:
                free = self.gate.leave()
            if free:
                return found
            self.give_back(found)
        elif done:
            self.intake.new(0, done, took)
        return []

    def give_back(self, tasks: list[Taken]) -> None:
        """Let others have tasks that were taken and not begun, at once; their attempts stay as they are."""
        if tasks:
            self.settling.ours(self.task.give_back(tasks), otherwise=0)

    def room(self, most: int, settling: int = 0) -> int:
        """Return how many more tasks may be taken, at most, while so many are about to be done."""
        return int(max(0, min(most, self.left - settling)))

    def within(self, taken: list[Taken], room: int) -> list[Taken]:
        """Give back what is too much: where it blocks, the server counts for each priority."""
        if self.limit is None and self.most > self.concurrency:
            return taken
        for task in taken[room:]:
            self.settling.release(task)
        return taken[:room]
