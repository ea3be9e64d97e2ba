"""The execution loop of a serial worker: fetches, runs and acknowledges in batches."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agentbus.queues.claimed import Taken
from agentbus.workers.executors import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.delivery import AnyDelivery
    from agentbus.store.steps import Op
    from agentbus.workers.acker import Acker
    from agentbus.workers.fetcher import Fetcher
    from agentbus.workers.pause import Gate

    Wrap = Callable[[Taken], AnyDelivery]

# The target duration of a batch in seconds: a longer one withholds tasks from other workers.
_BRISK, _SLOW = 0.05, 0.2
# With at least this many tasks, the next batch is fetched while one runs.
_AHEAD = 16


class Executor(Protocol):
    """Runs one batch of tasks after the other."""

    # An interrupt or exit that ended a handler, which is not a failure of its task.
    interrupted: BaseException | None

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[TaskOutcome | Taken]:
        """Run tasks until stopped, and return the outcome of each that was started."""

    def close(self) -> None:
        """Release its resources."""


class Loop:
    """Base of a worker's execution loops: its limits, and fetches that respect a pause.

    `concurrency` tasks run at once, the loop holds up to `most`, and ends after `limit` done tasks.
    """

    def __init__(
        self,
        run: Callable[[Op[Any]], Any],
        fetcher: Fetcher,
        acker: Acker,
        gate: Gate,
        wrap: Wrap,
        *,
        concurrency: int,
        most: int,
        limit: int | None,
    ) -> None:
        self._run = run
        self._consumer = fetcher.consumer
        self._fetcher = fetcher
        self._reclaimer = fetcher.reclaimer
        self._acker = acker
        self._tally = acker.tally
        self._gate = gate
        self._wrap = wrap
        self._concurrency = concurrency
        self._most = most
        self._limit = limit

    @property
    def over(self) -> bool:
        """Whether the loop must end."""
        return self._gate.stopping() or self._left == 0

    @property
    def _halted(self) -> bool:
        """Whether no task may start now."""
        return self.over or self._gate.held

    @property
    def _left(self) -> float:
        """How many tasks are left up to the limit."""
        return math.inf if self._limit is None else max(0, self._limit - self._acker.done)

    def _allowed(self, take: Callable[[], list[Taken]]) -> list[Taken] | None:
        """Take tasks, or return None if paused; if a pause began meanwhile, return the tasks."""
        if not self._gate.enter():
            return None
        found: list[Taken] = []
        free = False
        try:
            found = take()
        finally:
            free = self._gate.leave()
        if free:
            return found
        self._acker.give_back(found)
        return []

    def _retries(
        self, room: int, firsts: int, *, suspects: bool = True
    ) -> tuple[list[Taken], bool]:
        """Take tasks put aside, and return whether it is one suspect, which must run alone."""
        alone = False

        def take() -> list[Taken]:
            nonlocal alone
            retries: list[Taken]
            op = self._fetcher.retries(room, firsts, suspects=suspects)
            retries, alone = self._run(op)
            return retries

        found = self._allowed(take) or []
        return found, alone and bool(found)

    def _wait(self, room: int, seconds: float) -> list[Taken]:
        found = self._allowed(lambda: self._run(self._fetcher.wait(room, seconds)))
        return self._within(found or [], room)

    def _take(
        self, count: int, done: dict[str, list[bytes]] | None = None, took: float = 0.0
    ) -> list[Taken]:
        """Acknowledge done tasks, and unless paused, take new ones in the same step."""

        def take(count: int = count) -> list[Taken]:
            return self._counted(done, self._run(self._fetcher.new(count, done, took)))

        found = self._allowed(take) if count else None
        if found is None:
            return take(0) if done else []
        return found

    def _counted(
        self, done: dict[str, list[bytes]] | None, answer: tuple[int, list[Taken]]
    ) -> list[Taken]:
        """Count the tasks acknowledged with a fetch, and return the fetched ones."""
        stale, taken = answer
        if done:
            self._acker.count(sum(map(len, done.values())), stale)
        return taken

    def _admitted(self, task: Taken) -> bool:
        admitted: bool = self._run(self._fetcher.admitted(task))
        return admitted

    def _room(self, most: int, settling: int = 0) -> int:
        """Return how many tasks may be taken, at most `most`, while `settling` are not counted yet."""
        return int(max(0, min(most, self._left - settling)))

    def _within(self, taken: list[Taken], room: int) -> list[Taken]:
        """Return excess tasks: a blocking fetch applies its count to each priority."""
        if self._limit is None and self._most > self._concurrency:
            return taken
        for task in taken[room:]:
            self._acker.release(task)
        return taken[:room]


class _RanBatch(NamedTuple):
    """A batch that ran: its outcomes, its duration in seconds, and the tasks not started."""

    outcomes: list[TaskOutcome | Taken]
    took: float
    rest: list[Taken]


class Serial(Loop):
    """Runs a handler in the caller's thread."""

    def __init__(self, executor: Executor, *parts: Any, **limits: Any) -> None:
        super().__init__(*parts, **limits)
        self.executor = executor
        self._size = min(self._concurrency, self._most)
        self._brisk = False
        # The tasks that run, and those taken but not started.
        self.held: list[Taken] = []
        self._next: list[Taken] = []
        # Done, to be acknowledged with the next fetch.
        self._done: dict[str, list[bytes]] = {}
        self._took = 0.0

    def turn(self, wait: float) -> int:
        """Run redelivered tasks, then one batch, and return the number of tasks."""
        handled = self._again()
        if self.over:
            return handled
        batch, self._next = self._next, []
        if self._limit is not None:
            # Redelivered tasks may have used up the limit.
            batch = self._within(batch, self._room(len(batch)))
        if not batch:
            batch = self._take(self._room(self._size))
        if not batch and wait and not handled:
            batch = self._wait(self._room(self._size), wait)
        return handled + (self._batch(batch) if batch else 0)

    def settle(self) -> int:
        """Run the tasks taken so far, and return their number."""
        handled = 0
        while self._next and not self.over:
            batch, self._next = self._next, []
            handled += self._batch(batch, more=False)
        self.let_go()
        return handled

    def let_go(self) -> None:
        """Acknowledge the done tasks, and return those not started."""
        self._flush()
        self._acker.give_back(self._next)
        self._next, self.held = [], []

    def close(self) -> None:
        self.executor.close()

    def _batch(self, batch: list[Taken], *, more: bool = True) -> int:
        """Run a batch, acknowledge it, and take the next one in the same step."""
        self.held = batch
        handled = len(batch)
        if self._consumer.asks_first:
            batch = self._without_single(batch)
        if more and self._brisk and len(batch) >= _AHEAD and self._limit is None:
            self._overlapped(batch)
            return handled
        # Acknowledge the previous batch before this one runs.
        self._flush()
        outcomes, took, rest = self._timed(batch)
        done = self._acker.plain(outcomes)
        more = more and self.executor.interrupted is None
        room = self._room(self._size, sum(map(len, done.values()))) if more else 0
        if done or room:
            self._next = self._take(room, done, took)
        self._acker.give_back(rest)
        self.held = self._next
        self._pass_on_interrupt()
        return handled

    def _overlapped(self, batch: list[Taken]) -> None:
        """Run a batch while the server acknowledges the previous one and fetches the next."""
        results: list[_RanBatch] = []

        def meanwhile() -> None:
            self._gate.sent()
            if not results:
                results.append(self._timed(batch))

        def ahead() -> list[Taken]:
            fetch = self._fetcher.ahead(self._size, self._done, self._took, batch, meanwhile)
            return self._counted(self._done, self._run(fetch))

        try:
            following = self._allowed(ahead) or []
        except BaseException:
            # Interrupted while it waited for the reply: the batch has still run.
            for ran in results:
                for priority, ids in self._acker.plain(ran.outcomes).items():
                    self._done[priority] = [*self._done.get(priority, ()), *ids]
            raise
        if not results:
            # The worker is paused: nothing was fetched, and nothing ran.
            self._next = batch
            self.let_go()
            return
        ((outcomes, took, rest),) = results
        self._done, self._took = self._acker.plain(outcomes), took
        self._acker.give_back(rest)
        if self.executor.interrupted is not None:
            self._next = following
            self.let_go()
            self._pass_on_interrupt()
        if following and took > self._reclaimer.visibility / 3:
            # They got no heartbeat before the reply arrived.
            following = self._acker.still_ours(following)
        if not following and self._done:
            following = self._take(self._room(self._size), self._done, took)
            self._done = {}
        self._next = self.held = following

    def _timed(self, batch: list[Taken]) -> _RanBatch:
        """Run a batch without a server request; the caller must then call `_pass_on_interrupt`."""
        began = time.monotonic()
        outcomes = self.executor(batch, self._wrap)
        took = time.monotonic() - began
        if outcomes:
            self._tally.ran(len(outcomes), took / len(outcomes))
        self._brisk = took < _BRISK and len(batch) >= self._size // 2
        if self._brisk and len(batch) >= self._size:
            self._size = min(self._most, self._size * 2)
        elif took > _SLOW:
            self._size = max(1, self._size // 2)
        rest = []
        if len(outcomes) < len(batch):
            # The worker was stopped.
            begun = {id(one if isinstance(one, Taken) else one.task) for one in outcomes}
            rest = [task for task in batch if id(task) not in begun]
        return _RanBatch(outcomes, took, rest)

    def _flush(self) -> None:
        if self._done:
            self._take(0, self._done, self._took)
            self._done = {}

    def _pass_on_interrupt(self) -> None:
        """Raise the interrupt of a handler, after the done tasks are settled."""
        interrupt, self.executor.interrupted = self.executor.interrupted, None
        if interrupt is not None:
            raise interrupt

    def _again(self) -> int:
        handled = 0
        if self._consumer.doubtful:
            self._run(self._reclaimer.recover(self._known))
        while strays := self._reclaimer.strays:
            handled += self._alone(strays[0])
            del strays[0]
        self._run(self._reclaimer.reclaim())
        while True:
            # Between slow tasks, other workers may run the retries.
            tasks, alone = self._retries(
                self._room(min(_AHEAD, self._size)), self._room(self._size)
            )
            if not alone:
                break
            # If it kills this process, nothing else should wait for the visibility.
            self._acker.give_back(self._next)
            self._next, self.held = [], tasks
            handled += self._alone(tasks[0])
        self.held = [*tasks, *self._next]
        # Replayed tasks, and those returned before they started, run as new ones do.
        firsts = [task for task in tasks if not (task.redelivered or task.asked_first)]
        if firsts:
            self._flush()
            outcomes, took, rest = self._timed(firsts)
            self._take(0, self._acker.plain(outcomes), took)
            self._acker.give_back(rest)
            self._pass_on_interrupt()
            handled += len(firsts)
        for task in tasks:
            if task.redelivered or task.asked_first:
                handled += self._alone(task)
        self.held = self._next
        return handled

    def _alone(self, task: Taken) -> int:
        if self._halted:
            self._acker.give_back([task])
            return 0
        # Done tasks get no heartbeat, and this one may take long.
        self._flush()
        if self._admitted(task):
            began = time.monotonic()
            outcomes = self.executor([task], self._wrap)
            for outcome in outcomes:
                self._tally.ran(1, time.monotonic() - began)
                self._acker.settle(TaskOutcome(task) if isinstance(outcome, Taken) else outcome)
            if not outcomes:
                # The worker was stopped after the attempt was counted.
                self._acker.release(task)
            self._pass_on_interrupt()
        return 1

    def _without_single(self, batch: list[Taken]) -> list[Taken]:
        """Run the tasks that the server must admit first, one by one, and return the others."""
        for task in batch:
            if task.asked_first:
                self._alone(task)
        self.held = rest = [task for task in batch if not task.asked_first]
        return rest

    def _known(self, priority: str) -> list[bytes]:
        return [task.entry_id for task in self.held if task.priority == priority]
