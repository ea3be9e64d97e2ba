"""Where a worker's next tasks come from: new ones, those put aside, and those of dead workers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.queues.ids import PRIORITIES
from agentbus.store.failures import GroupMissing
from agentbus.store.steps import Batch, ServerReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.store.steps import Op
    from agentbus.workers.acker import Settling

T = TypeVar("T")

_RECLAIM_EVERY = 30.0
_LONGEST_WAIT = 1.0
# How many seconds late a network may deliver a request that was given up.
_LATE = 300.0
# Every so many takes one begins at the low end, so that no priority starves.
_TURN = 10


class Intake:
    """Takes tasks for one consumer."""

    def __init__(
        self,
        consumption: Consumption,
        settling: Settling,
        do: Callable[[Op[Any]], Any],
        *,
        attempts: int,
        visibility: float,
    ) -> None:
        self._task = consumption
        self._settling = settling
        self._do = do
        self._attempts = attempts
        self._visibility = visibility
        self._turn = 0
        self._next_reclaim = 0.0
        # Until when tasks that we do not know of may come to be ours, by `time.monotonic`.
        self._doubtful_until = 0.0
        self._unsure = True
        # Taken over, and not yet begun; and what is ours by an answer that was lost.
        self.page: list[Taken] = []
        self.strays: list[Taken] = []
        # Held while tasks are taken over, until they stand in `page`: two threads may be at it.
        self._taking_over = threading.Lock()

    def prepare(self) -> None:
        """Make the group where it is missing."""
        if self._unsure or self._task.missing:
            self._do(self._task.prepare())
            self._unsure = self._task.missing = False

    def new(
        self, count: int, done: dict[str, list[bytes]] | None = None, took: float = 0.0
    ) -> list[Taken]:
        """Take new tasks without waiting; acknowledges those that are done in the same step."""
        self.prepare()
        self._turn += 1
        low = 1 if self._turn % _TURN == 0 else 0
        return self._noted(done or {}, self._do(self._task.turn(done or {}, took, count, low)))

    def ahead(
        self,
        count: int,
        done: dict[str, list[bytes]],
        took: float,
        batch: list[Taken],
        meanwhile: Callable[[], None],
    ) -> list[Taken]:
        """Take as `new` does, and do something meanwhile with a batch that is in hand."""
        self.prepare()
        holds: dict[str, int] | None = None
        if self._certain():
            holds = {priority: len(ids) for priority, ids in done.items()}
            for task in batch:
                holds[task.priority] = holds.get(task.priority, 0) + 1
        return self._noted(
            done, self._do(self._task.turn_ahead(done, took, count, holds, meanwhile))
        )

    def _noted(
        self, done: dict[str, list[bytes]], answer: tuple[list[bytes], list[Taken]]
    ) -> list[Taken]:
        stale, taken = answer
        if done:
            self._settling.count(sum(map(len, done.values())) - len(stale), len(stale))
        return self._received(taken)

    def _certain(self) -> bool:
        """Tell whether this consumer surely holds nothing that it does not know of."""
        now = time.monotonic()
        if self._task.doubtful:
            # The lost request's first copy may be on its way still, though another one was answered.
            self._doubtful_until = now + _LATE
        return now >= self._doubtful_until

    def _received(self, taken: list[Taken]) -> list[Taken]:
        if taken:
            tally = self._settling.tally
            tally.note("received", len(taken))
            # The one in the middle stands for all.
            tally.waited(len(taken), tally.age(taken[len(taken) // 2].entry_id))
        return taken

    def wait(self, count: int, seconds: float) -> list[Taken]:
        """Take new tasks, waiting for them; the server counts for each priority."""
        self.prepare()
        soonest = min(self._settling.due.values()) - self._task.scope.now()
        try:
            taken = self._do(self._task.take(count, max(0.001, min(seconds, soonest))))
        except GroupMissing:
            self._task.missing = True
            return []
        return self._received(taken)

    def retries(self, count: int, firsts: int) -> list[Taken]:
        """Take tasks that were put aside and are due; of those without an attempt so far, `firsts`."""
        found: list[Taken] = []
        now, due = self._task.scope.now(), self._settling.due
        for priority in PRIORITIES:
            if count > len(found) and due[priority] <= now:
                try:
                    tasks, next_due, lost = self._do(
                        self._task.again(priority, count - len(found), firsts=firsts)
                    )
                except GroupMissing:
                    self._task.missing = True
                    continue
                if lost:
                    self._settling.tally.note("lost", lost)
                # Another worker may put one aside meanwhile.
                left = _LONGEST_WAIT if next_due is None else next_due
                due[priority] = now + min(max(left, 0.0), _LONGEST_WAIT)
                found += tasks
        return found

    @property
    def unsettled(self) -> bool:
        """Whether an answer that gave us tasks was lost, and not all of them have been run."""
        return self._task.doubtful or bool(self.strays)

    @property
    def reclaims(self) -> bool:
        """Whether it is time to look for what is to be taken over."""
        return bool(self.strays) or time.monotonic() >= self._next_reclaim

    def look_again(self) -> None:
        """Have the next look at what was put aside happen at once."""
        for priority in PRIORITIES:
            self._settling.due[priority] = 0.0

    def recover(self, held: Callable[[str], list[bytes]]) -> None:
        """Find what is ours by an answer that was lost; to be called between two takes.

        `held` tells what this consumer knows that it holds, by priority.
        """
        if self._certain() or not self._task.doubtful:
            return
        self._task.doubtful = False
        with self._taking_over:
            known = [*self.page, *self.strays]
            for priority in PRIORITIES:
                ids = [task.entry_id for task in known if task.priority == priority]
                tasks = self._settling.ours(
                    self._task.own(priority, [*held(priority), *ids]), otherwise=[]
                )
                for task in tasks:
                    # It was never run: its first attempt is the first, unless one was counted.
                    task.uncounted = 0
                self.strays += tasks

    def reclaimed(self) -> Iterator[Taken]:
        """Give what was recovered; then take over, now and then, what dead workers hold."""
        while self.strays:
            yield self.strays[0]
            del self.strays[0]
        now = time.monotonic()
        if now < self._next_reclaim:
            return
        self._next_reclaim = now + min(_RECLAIM_EVERY, self._visibility / 2)
        for priority in PRIORITIES:
            start = "-"
            while start:
                with self._taking_over:
                    start, tasks, lost = self._settling.ours(
                        self._task.reclaim(priority, self._visibility, start, 100),
                        otherwise=("", [], 0),
                    )
                    self.page = list(tasks)
                if tasks:
                    self._settling.tally.note("reclaimed", len(tasks))
                if lost:
                    self._settling.tally.note("lost", lost)
                for task in tasks:
                    yield task
                    self.page.remove(task)

    def admitted(self, task: Taken) -> bool:
        """Tell whether a task that needs a look first may begin; if not, it was seen to.

        What is delivered again has its attempt counted before it starts. What has an ordering key
        waits for those before it. What another program asked for twice is done once.
        """
        if task.claims and not self._settling.ours(self._task.claim(task), otherwise=1):
            self._settling.ours(self._task.finish(task, 0.0), otherwise=False)
            self._settling.tally.note("duplicates")
            return False
        if task.ordered:
            answer = self._settling.ours(self._task.enter(task), otherwise=-1)
            if answer != 1:
                return False
        if not task.redelivered:
            return True
        task.attempt = self._settling.ours(self._task.begin(task, task.uncounted or 0), otherwise=0)
        if not task.attempt:
            return False
        if task.attempt > self._attempts:
            why = f"its worker died, or was stopped, in each of its {self._attempts} attempts"
            task.attempt = self._attempts
            self._settling.bury(task, why)
            if task.ordered:
                self._settling.pass_on(task)
            return False
        return True

    def expected(self) -> bool:
        """Tell whether anything is still to come: a delayed task, or a retry."""
        *soon, dependent, notes = self._do(_waiting(self._task))
        # What waits for others may never come, unless it is about to be told that they are done.
        return any(soon) or bool(dependent and notes)


def _waiting(consumption: Consumption) -> Op[list[int]]:
    keys = consumption.scope.keys
    replies = yield Batch(
        [
            ("ZCARD", keys.delayed(consumption.queue)),
            *(("ZCARD", consumption.retries(priority)) for priority in PRIORITIES),
            ("ZCARD", keys.after(consumption.queue)),
            ("EXISTS", keys.settled),
        ]
    )
    return [0 if isinstance(reply, ServerReply) else int(reply) for reply in replies]
