"""The execution loop of a concurrent worker: each task is settled when its handler returns."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.queues.claimed import Taken
from agentbus.workers.acker import order
from agentbus.workers.batch import QUICK
from agentbus.workers.loop import Loop

if TYPE_CHECKING:
    from agentbus.workers.acker import Acker
    from agentbus.workers.batch import TaskOutcome
    from agentbus.workers.pool import Pool

    _Ended = tuple[TaskOutcome | Taken, float]
_SHORT_WAIT = 0.1
# Fetch enough tasks in advance for this many seconds of work.
_AHEAD = 0.05
_MEASURE_EVERY = 0.25
_MEASURE_FIRST = 0.05
# Above this rate per second, each fetch, of which one starts every few ms, also settles tasks.
_BRISK, _COLLECT, _COLLECT_LEAST = 2000.0, 0.005, 0.001


class InFlight:
    """The tasks that a worker holds, and the thread that settles them.

    While there are many quick tasks, the worker's own thread collects and settles the ended ones.
    """

    def __init__(self, concurrency: int, most: int, acker: Acker) -> None:
        self._concurrency = concurrency
        self._most = max(most, concurrency)
        self._acker = acker
        self._held: dict[bytes, Taken] = {}
        self._ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._change = threading.Condition()
        self._counting = threading.Lock()
        self._count = 0
        self._rate = 0.0
        self._measured = time.monotonic()
        self.failure: Exception | None = None
        self.pool: Pool | None = None
        # True if the worker's own thread collects ended tasks.
        self._collected = False
        self._thread = threading.Thread(target=self._settle, name="agentbus-settler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Settle all tasks, then stop the threads."""
        self.leave()
        self.until(lambda: not self._held, None)
        self._ended.put(None)
        self._thread.join()
        if self.pool is not None:
            self.pool.close()

    @property
    def held(self) -> list[Taken]:
        """The tasks that are not settled yet."""
        return list(self._held.values())

    @property
    def room(self) -> int:
        """The number of further tasks to take: enough to run, plus those for the next 50 ms."""
        # Measure now, so that the rate falls even while no task ends.
        self._measure(0)
        ahead = int(self._rate * _AHEAD)
        return min(self._concurrency + ahead, self._most) - len(self._held)

    @property
    def brisk(self) -> bool:
        """True if tasks end so quickly that fetches should settle them."""
        self._measure(0)
        return self._rate > _BRISK and self.collect_every >= _COLLECT_LEAST

    @property
    def collect_every(self) -> float:
        """Seconds between two fetches that settle; the prefetched tasks must last for two of them."""
        return min(_COLLECT, (self._most - self._concurrency) / (2 * max(1.0, self._rate)))

    def collect(self) -> list[_Ended]:
        """Return the tasks that ended since the last call; from now on, only this thread settles them."""
        self._collected = True
        ended: list[_Ended] = []
        with contextlib.suppress(queue.Empty):
            while (task := self._ended.get_nowait()) is not None:
                ended.append(task)
        return ended

    def leave(self) -> None:
        """Let the settling thread settle all tasks that end from now on."""
        if self._collected:
            with self._change:
                self._collected = False
                self._change.notify_all()

    def excess(self) -> list[Taken]:
        """Take away the tasks that wait behind running tasks that have become slow."""
        assert self.pool is not None
        self._measure(0)
        ahead = int(self._rate * _AHEAD)
        held = len(self._held)
        if held <= self._concurrency + 2 * ahead:
            return []
        tasks = self.pool.take_back(held - self._concurrency - ahead)
        with self._change:
            for task in tasks:
                self._held.pop(_name(task), None)
            self._change.notify_all()
        return tasks

    def submit(self, tasks: list[Taken]) -> None:
        for task in tasks:
            self._held[_name(task)] = task
        assert self.pool is not None
        self.pool.submit(tasks)

    def cancel(self, task: Taken) -> None:
        """Interrupt the handler of a cancelled task; thread-safe."""
        if self.pool is not None:
            self.pool.cancel(task)

    def is_settled(self, task: Taken) -> bool:
        return _name(task) not in self._held

    def until(self, happened: Callable[[], bool], seconds: float | None) -> None:
        """Wait until a condition on the held tasks is true, or `seconds` have passed."""
        with self._change:
            self._change.wait_for(lambda: happened() or self.failure is not None, seconds)

    def report(self, outcome: TaskOutcome | Taken, took: float) -> None:
        """Report that a task has ended after `took` seconds; thread-safe."""
        self._ended.put((outcome, took))

    def _settle(self) -> None:
        while (first := self._ended.get()) is not None:
            if self._collected:
                self._ended.put(first)
                with self._change:
                    self._change.wait_for(lambda: not self._collected)
                continue
            batch = [first]
            while len(batch) < self._most and not self._ended.empty():
                more = self._ended.get()
                if more is None:
                    self._ended.put(None)
                    break
                batch.append(more)
            try:
                done, took = self.conclude(batch)
                if done:
                    self._acker.ack(done, took)
            except Exception as failure:  # noqa: BLE001 (the worker's own thread raises it)
                self.failure = failure
            self.let_go(outcome for outcome, _ in batch)

    def conclude(self, ended: list[_Ended]) -> tuple[dict[str, list[bytes]], float]:
        """Settle tasks that need more than an ack; return the ids to acknowledge, and their seconds."""
        tally, quick, spent, total = self._acker.tally, 0, 0.0, 0.0
        for outcome, took in ended:
            total += took
            if isinstance(outcome, Taken) or outcome.ran:
                if took < QUICK:
                    quick += 1
                    spent += took
                else:
                    tally.count_runs(1, took)
        if quick:
            tally.count_runs(quick, spent / quick)
        return self._acker.plain([outcome for outcome, _ in ended]), total

    def let_go(self, batch: Iterable[TaskOutcome | Taken]) -> None:
        """Forget tasks that have been settled."""
        number = 0
        with self._change:
            for outcome in batch:
                task = outcome if isinstance(outcome, Taken) else outcome.task
                self._held.pop(_name(task), None)
                number += 1
            self._change.notify_all()
        self._measure(number)

    def _measure(self, number: int) -> None:
        """Count ended tasks, and update the rate per second from time to time."""
        with self._counting:
            self._count += number
            spent = time.monotonic() - self._measured
            if spent >= (_MEASURE_EVERY if self._rate else _MEASURE_FIRST):
                self._rate = self._count / spent
                self._count = 0
                self._measured += spent


def _nothing() -> None:
    """Do nothing during the server's response, since the tasks run in other threads."""


def _name(task: Taken) -> bytes:
    return task.priority.encode() + task.entry_id


class Concurrent(Loop):
    """Runs a handler for several tasks at once."""

    def __init__(self, in_flight: InFlight, *parts: Any, **limits: Any) -> None:
        super().__init__(*parts, **limits)
        self._in_flight = in_flight
        self._look_every = self._consumer.scope.intervals.look
        # A task that a dead worker may have started; at most one such task runs at a time.
        self._suspect: Taken | None = None
        in_flight.start()

    @property
    def held(self) -> list[Taken]:
        return self._in_flight.held

    def turn(self, wait: float) -> int:
        """Submit redelivered and new tasks, and return the number of held tasks."""
        in_flight = self._in_flight
        if in_flight.failure is not None:
            raise in_flight.failure
        handled = 0
        self._recover()
        self._run(self._reclaimer.reclaim())
        room = self._free_room()
        free = self._suspect is None or in_flight.is_settled(self._suspect)
        if free and self._suspect is not None:
            self._suspect = None
            self._fetcher.look_again()
        tasks, alone = self._retries(room, room, suspects=free)
        if alone:
            (self._suspect,) = tasks
        handled += len(tasks)
        single = [task for task in tasks if self._fetcher.apart(task)]
        others = [task for task in tasks if not self._fetcher.apart(task)]
        others = self._run(self._fetcher.enter_orders(others, chained=False))
        in_flight.submit([*others, *(task for task in single if self._admit(task))])
        limited = self._consumer.limit is not None
        if in_flight.brisk and not limited and self._limit is None and self._suspect is None:
            batch, ended = self._settle_and_take()
            if batch or ended:
                self._submit_batch(batch)
                return handled + ended + len(in_flight.held)
        in_flight.leave()
        room = self._free_room()
        if room <= 0:
            in_flight.until(lambda: self._free_room() > 0, self._look_every)
            return handled + 1
        batch = self._take(room)
        if self._suspect is not None and not batch and not handled:
            # The next suspect may start as soon as this one has ended.
            in_flight.until(partial(in_flight.is_settled, self._suspect), _SHORT_WAIT)
        elif not batch and wait and not handled:
            # While tasks run, a retry may become due at any moment.
            wait = min(wait, _SHORT_WAIT) if in_flight.held else wait
            batch = self._wait(room, wait)
        handled += len(batch)
        self._submit_batch(batch)
        return handled + len(in_flight.held)

    def _submit_batch(self, batch: list[Taken]) -> None:
        """Submit new tasks."""
        if self._consumer.asks_first or self._consumer.limit is not None:
            for task in batch:
                if self._fetcher.apart(task):
                    self._submit(task)
            batch = [task for task in batch if not self._fetcher.apart(task)]
            batch = self._run(self._fetcher.enter_orders(batch, chained=False))
        self._in_flight.submit(batch)

    def _settle_and_take(self) -> tuple[list[Taken], int]:
        """Settle ended tasks and take new ones in one exchange; return the new ones and how many ended."""
        in_flight = self._in_flight
        # Wait, so that one exchange settles many tasks; tasks fetched in advance run during the
        # wait.
        time.sleep(in_flight.collect_every)
        ended = in_flight.collect()
        outcomes = [outcome for outcome, _ in ended]
        try:
            done, took = in_flight.conclude(ended)
            for ids in done.values():
                ids.sort(key=order)
            room = in_flight.room + len(outcomes)
            tasks = None
            if room > 0:
                gone = {
                    id(outcome if isinstance(outcome, Taken) else outcome.task)
                    for outcome in outcomes
                }
                rest = [task for task in in_flight.held if id(task) not in gone]

                def take() -> list[Taken]:
                    op = self._fetcher.ahead(room, done, took, rest, _nothing)
                    return self._count_done(done, self._run(op))

                tasks = self._take_allowed(take)
            if tasks is None and done:
                self._acker.ack(done, took)
        finally:
            in_flight.let_go(outcomes)
        return tasks or [], len(outcomes)

    def settle(self) -> int:
        """Wait until all tasks are settled."""
        self._in_flight.leave()
        self._in_flight.until(lambda: not self._in_flight.held, None)
        if self._in_flight.failure is not None:
            raise self._in_flight.failure
        return 0

    def let_go(self) -> None:
        """Do nothing, because the pool returns unstarted tasks."""

    def relieve(self) -> None:
        self._acker.give_back(self._in_flight.excess())

    def close(self) -> None:
        self._in_flight.close()

    def _free_room(self) -> int:
        room, held = self._in_flight.room, len(self._in_flight.held)
        if self._consumer.limit is not None:
            # A task that waited in this process would occupy a slot of the limit.
            room = min(room, self._concurrency - held)
        return self._room(room, held)

    def _submit(self, task: Taken) -> None:
        if self._admit(task):
            self._in_flight.submit([task])
