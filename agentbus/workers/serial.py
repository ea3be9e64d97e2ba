"""Handlers one after the other: tasks are taken, run and acknowledged in batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agentbus.queues.claimed import Taken
from agentbus.workers.executors import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.delivery import Delivery
    from agentbus.workers.duty import Duty

# A batch should take about this long: longer ones keep tasks from other workers.
_BRISK, _SLOW = 0.05, 0.2
# From so many tasks on, a batch is taken while the one before it runs.
_AHEAD = 16


class Performer(Protocol):
    """Does tasks one batch after the other, and says what became of each."""

    # What ended a handler and is no failure of its task: an interrupt, an exit.
    interrupted: BaseException | None

    def __call__(
        self, tasks: Sequence[Taken], wrap: Callable[[Taken], Delivery]
    ) -> list[Outcome | Taken]:
        """Do tasks, until stopped, and return what became of each that was begun."""

    def close(self) -> None:
        """Close what it ran in."""


class _Run(NamedTuple):
    """What became of a batch: outcomes, how many seconds they took, and the tasks that did not begin."""

    outcomes: list[Outcome | Taken]
    took: float
    rest: list[Taken]


class Serial:
    """Runs a handler in the caller's thread."""

    def __init__(self, duty: Duty, perform: Performer) -> None:
        self._duty = duty
        self._perform = perform
        self._size = min(duty.concurrency, duty.most)
        self._brisk = False
        # What runs, and what was taken and has not begun.
        self.held: list[Taken] = []
        self._next: list[Taken] = []
        # Done, and acknowledged with the next take.
        self._done: dict[str, list[bytes]] = {}
        self._took = 0.0

    def turn(self, wait: float) -> int:
        """Run what is to be delivered again, then one batch; returns how many tasks were seen to."""
        duty = self._duty
        handled = self._again()
        if duty.over:
            return handled
        batch, self._next = self._next, []
        if duty.limit is not None:
            # What was delivered again may have used the room that these were taken for.
            batch = duty.within(batch, duty.room(len(batch)))
        if not batch:
            batch = duty.take(duty.room(self._size))
        if not batch and wait and not handled:
            room = duty.room(self._size)
            batch = duty.within(duty.allowed(lambda: duty.intake.wait(room, wait)), room)
        return handled + (self._batch(batch) if batch else 0)

    def settle(self) -> int:
        """Run what is in hand to its end, and take nothing more; returns how many tasks there were."""
        handled = 0
        while self._next and not self._duty.over:
            batch, self._next = self._next, []
            handled += self._batch(batch, more=False)
        self.let_go()
        return handled

    def let_go(self) -> None:
        """Say what was done, and give back what was not begun."""
        self._flush()
        self._duty.give_back(self._next)
        self._next, self.held = [], []

    def close(self) -> None:
        """Close what the handler ran in."""
        self._perform.close()

    def _batch(self, batch: list[Taken], *, more: bool = True) -> int:
        """Run a batch, acknowledge it, and take the next one in the same step."""
        duty = self._duty
        self.held = batch
        handled = len(batch)
        if duty.task.asks_first:
            batch = self._without_single(batch)
        if more and self._brisk and len(batch) >= _AHEAD and duty.limit is None:
            self._overlapped(batch)
            return handled
        # Those before are not to wait for these.
        self._flush()
        outcomes, took, rest = self._timed(batch)
        done = duty.settling.plain(outcomes)
        more = more and self._perform.interrupted is None
        room = duty.room(self._size, sum(map(len, done.values()))) if more else 0
        if done or room:
            self._next = duty.take(room, done, took)
        duty.give_back(rest)
        self.held = self._next
        self._pass_on_interrupt()
        return handled

    def _overlapped(self, batch: list[Taken]) -> None:
        """Run a batch while the server acknowledges the one before and looks for the one after."""
        duty = self._duty
        results: list[_Run] = []

        def meanwhile() -> None:
            duty.gate.sent()
            if not results:
                results.append(self._timed(batch))

        try:
            following = duty.allowed(
                lambda: duty.intake.ahead(self._size, self._done, self._took, batch, meanwhile)
            )
        except BaseException:
            # Interrupted while it waited for the answer: what was done is done.
            for ran in results:
                for priority, ids in duty.settling.plain(ran.outcomes).items():
                    self._done[priority] = [*self._done.get(priority, ()), *ids]
            raise
        if not results:
            # The gate is shut: nothing was asked, and nothing run.
            self._next = batch
            self.let_go()
            return
        ((outcomes, took, rest),) = results
        self._done, self._took = duty.settling.plain(outcomes), took
        duty.give_back(rest)
        if self._perform.interrupted is not None:
            self._next = following
            self.let_go()
            self._pass_on_interrupt()
        if following and took > duty.visibility / 3:
            # They gave no sign of life, since we did not know of them.
            following = duty.settling.still_ours(following)
        if not following and self._done:
            following = duty.take(duty.room(self._size), self._done, took)
            self._done = {}
        self._next = self.held = following

    def _timed(self, batch: list[Taken]) -> _Run:
        """Run a batch, and ask nothing of the server; to be followed by `_pass_on_interrupt`."""
        duty = self._duty
        began = time.monotonic()
        outcomes = self._perform(batch, duty.wrap)
        took = time.monotonic() - began
        if outcomes:
            duty.tally.ran(len(outcomes), took / len(outcomes))
        self._brisk = took < _BRISK and len(batch) >= self._size // 2
        if self._brisk and len(batch) >= self._size:
            self._size = min(duty.most, self._size * 2)
        elif took > _SLOW:
            self._size = max(1, self._size // 2)
        rest = []
        if len(outcomes) < len(batch):
            # It was told to stop.
            begun = {id(one if isinstance(one, Taken) else one.task) for one in outcomes}
            rest = [task for task in batch if id(task) not in begun]
        return _Run(outcomes, took, rest)

    def _flush(self) -> None:
        """Acknowledge what is done."""
        if self._done:
            self._duty.take(0, self._done, self._took)
            self._done = {}

    def _pass_on_interrupt(self) -> None:
        """Raise what interrupted a handler, now that what was done is settled."""
        interrupt, self._perform.interrupted = self._perform.interrupted, None
        if interrupt is not None:
            raise interrupt

    def _again(self) -> int:
        """Run what is to be delivered again, one by one."""
        duty = self._duty
        handled = 0
        tasks = duty.allowed(lambda: duty.intake.retries(duty.room(_AHEAD), duty.room(self._size)))
        self.held = [*tasks, *self._next]
        # Replayed, or given back before they began: they are as good as new.
        firsts = [task for task in tasks if not (task.redelivered or task.asked_first)]
        if firsts:
            self._flush()
            outcomes, took, rest = self._timed(firsts)
            duty.take(0, duty.settling.plain(outcomes), took)
            duty.give_back(rest)
            self._pass_on_interrupt()
            handled += len(firsts)
        for task in tasks:
            if task.redelivered or task.asked_first:
                handled += self._alone(task)
        self.held = self._next
        duty.intake.recover(self._known)
        if duty.intake.reclaims:
            for task in duty.intake.reclaimed():
                handled += self._alone(task)
        return handled

    def _alone(self, task: Taken) -> int:
        duty = self._duty
        if duty.halted:
            duty.give_back([task])
            return 0
        # Nobody gives a sign of life for what is done.
        self._flush()
        if duty.intake.admitted(task):
            began = time.monotonic()
            outcomes = self._perform([task], duty.wrap)
            for outcome in outcomes:
                duty.tally.ran(1, time.monotonic() - began)
                duty.settling.settle(Outcome(task) if isinstance(outcome, Taken) else outcome)
            if not outcomes:
                # It was told to stop in the same moment; its attempt was counted, and did not begin.
                duty.settling.release(task)
            self._pass_on_interrupt()
        return 1

    def _without_single(self, batch: list[Taken]) -> list[Taken]:
        """Run those that the server is asked about first, one by one, and return the others."""
        for task in batch:
            if task.asked_first:
                self._alone(task)
        self.held = rest = [task for task in batch if not task.asked_first]
        return rest

    def _known(self, priority: str) -> list[bytes]:
        return [task.entry_id for task in self.held if task.priority == priority]
