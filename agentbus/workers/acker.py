"""Says what became of tasks: done, to be tried again, or buried."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.core.errors import InvalidPayload
from agentbus.queues.claimed import Taken
from agentbus.queues.ids import PRIORITIES
from agentbus.store.failures import GroupMissing
from agentbus.workers.executors import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentbus.queues.consumer import Consumption
    from agentbus.queues.retry import Backoff
    from agentbus.store.steps import Op
    from agentbus.workers.metrics import Tally

    Done = dict[str, list[bytes]]

T = TypeVar("T")


class Settling:
    """Tells the server what became of one consumer's tasks."""

    def __init__(
        self,
        consumption: Consumption,
        do: Callable[[Op[Any]], Any],
        *,
        attempts: int,
        backoff: Backoff,
        tally: Tally,
    ) -> None:
        self._task = consumption
        self._do = do
        self._attempts = attempts
        self._backoff = backoff
        self.tally = tally
        self.done = 0
        self.failed = 0
        # Several of a worker's threads count.
        self._counting = threading.Lock()
        # Priority: when to look for what was put aside, in unix seconds. Never another key, since several
        # threads look at it.
        self.due = dict.fromkeys(PRIORITIES, 0.0)

    def plain(self, outcomes: Iterable[Outcome | Taken]) -> Done:
        """Settle what has more to say than that it is done; return the ids of the rest, by priority."""
        ids: Done = {}
        acked = 0
        for outcome in outcomes:
            # Most are done and say nothing.
            if isinstance(outcome, Taken):
                task = outcome
                if (task.meta or task.redelivered) and task.alone:
                    self.settle(Outcome(task))
                    continue
            else:
                task = outcome.task
                if outcome.settled and not task.ordered:
                    acked += outcome.acked
                    continue
                if task.alone or not outcome.plain:
                    self.settle(outcome)
                    continue
            try:
                ids[task.priority].append(task.entry_id)
            except KeyError:
                ids[task.priority] = [task.entry_id]
        if acked:
            self.count(acked, 0)
        return ids

    def ack(self, done: Done, took: float) -> None:
        """Acknowledge tasks, in any order, whose handlers took so many seconds together."""
        for ids in done.values():
            ids.sort(key=order)
        number = sum(map(len, done.values()))
        stale, _ = self._do(self._task.turn(done, took, 0))
        self.count(number - len(stale), len(stale))

    def count(self, number: int, stale: int) -> None:
        """Count tasks that were done, and those that were no longer ours when they were."""
        with self._counting:
            self.done += number
        if number:
            self.tally.note("processed", number)
        if stale:
            self.tally.note("stale", stale)

    def settle(self, outcome: Outcome) -> None:
        """Say what became of one task."""
        task = outcome.task
        if not outcome.begun:
            self.release(task)
            return
        if outcome.settled:
            self.count(int(outcome.acked), 0)
        elif outcome.error is None:
            try:
                done = self.ours(
                    self._task.finish(task, outcome.took, outcome.result), otherwise=False
                )
                self.count(int(done), int(not done))
            except InvalidPayload as error:
                # Nothing was sent: the result is as wrong as any other failure.
                outcome.failed(error)
                self._failed(outcome)
        else:
            self._failed(outcome)
        if task.ordered:
            self.pass_on(task)

    def pass_on(self, task: Taken) -> None:
        """Say that a task with an ordering key is done with, and have the next one looked for at once."""
        if self.ours(self._task.wake(task), otherwise=0):
            self.due[task.priority] = 0.0

    def _failed(self, outcome: Outcome) -> None:
        task, error = outcome.task, outcome.error
        assert error is not None
        with self._counting:
            self.failed += 1
        self.tally.note("failed")
        if outcome.bury or task.attempt >= self._attempts:
            self.bury(task, error)
            return
        after = self._backoff.after(task.attempt) if outcome.after is None else outcome.after
        self.tally.note("retried" if self._aside(task, after) else "stale")

    def bury(self, task: Taken, error: BaseException | str) -> None:
        """Move a task to the dead letters."""
        buried = self.ours(self._task.bury(task, error), otherwise=False)
        self.tally.note("dead" if buried else "stale")

    def release(self, task: Taken) -> None:
        """Give back a task that was taken and not begun, due at once for any worker."""
        # Its attempt was counted ahead, if it was delivered before.
        task.attempt = max(0, task.attempt - 1) if task.redelivered else 0
        self._aside(task, 0.0)

    def _aside(self, task: Taken, after: float) -> bool:
        ours = self.ours(self._task.retry(task, after), otherwise=False)
        if ours:
            self.aside_until(task.priority, self._task.scope.now() + after)
        return ours

    def aside_until(self, priority: str, due: float) -> None:
        """Look for what was put aside at this unix time at the latest."""
        self.due[priority] = min(self.due[priority], due)

    def still_ours(self, tasks: list[Taken]) -> list[Taken]:
        """Show a sign of life for tasks, and return those that were not taken over before it."""
        ids: Done = {}
        for task in tasks:
            ids.setdefault(task.priority, []).append(task.entry_id)
        gone = {
            (priority, entry_id)
            for priority, found in ids.items()
            for entry_id in self.ours(
                self._task.heartbeat(priority, sorted(found, key=order)), otherwise=found
            )
        }
        return [task for task in tasks if (task.priority, task.entry_id) not in gone]

    def ours(self, op: Op[T], *, otherwise: T) -> T:
        """Run an operation on a task; where its group was removed meanwhile, it is not ours any longer."""
        try:
            found: T = self._do(op)
        except GroupMissing:
            self._task.missing = True
            return otherwise
        return found


def order(entry_id: bytes) -> tuple[int, int]:
    """Return what entry ids are sorted by."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
