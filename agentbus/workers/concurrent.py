"""The execution loop of a concurrent worker: each task is settled when its handler returns."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.queues.claimed import Taken
from agentbus.workers.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentbus.workers.acker import Acker
    from agentbus.workers.batch import TaskOutcome
    from agentbus.workers.pool import Pool

    _Ended = tuple[TaskOutcome | Taken, float]
_SHORT_WAIT = 0.1
# Tasks for this many seconds of work are fetched ahead of those that run.
_AHEAD = 0.05
_MEASURE_EVERY = 0.25


class InFlight:
    """The tasks that a worker holds, and the thread that settles them."""

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
        self._thread = threading.Thread(target=self._settle, name="agentbus-settler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Settle all tasks, then stop the threads."""
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
        """How many more tasks may be taken: enough to run, plus those for the next 50 ms."""
        # The rate must fall even while no task ends.
        self._measure(0)
        ahead = int(self._rate * _AHEAD)
        return min(self._concurrency + ahead, self._most) - len(self._held)

    def excess(self) -> list[Taken]:
        """Take away the tasks that wait although those that run became slow."""
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
        """Record that a task ended after `took` seconds; thread-safe."""
        self._ended.put((outcome, took))

    def _settle(self) -> None:
        while (first := self._ended.get()) is not None:
            batch = [first]
            while len(batch) < self._most and not self._ended.empty():
                more = self._ended.get()
                if more is None:
                    self._ended.put(None)
                    break
                batch.append(more)
            outcomes = [outcome for outcome, _ in batch]
            for outcome, took in batch:
                if isinstance(outcome, Taken) or outcome.begun:
                    self._acker.tally.ran(1, took)
            try:
                done = self._acker.plain(outcomes)
                if done:
                    self._acker.ack(done, sum(took for _, took in batch))
            except Exception as failure:  # noqa: BLE001 (the worker's own thread raises it)
                self.failure = failure
            self._let_go(outcomes)

    def _let_go(self, batch: Iterable[TaskOutcome | Taken]) -> None:
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
            if spent >= _MEASURE_EVERY:
                self._rate = self._count / spent
                self._count = 0
                self._measured += spent


def _name(task: Taken) -> bytes:
    return task.priority.encode() + task.entry_id


class Concurrent(Loop):
    """Runs a handler for several tasks at once."""

    def __init__(self, in_flight: InFlight, *parts: Any, **limits: Any) -> None:
        super().__init__(*parts, **limits)
        self._in_flight = in_flight
        self._look_every = self._consumer.scope.intervals.look
        # A task that a dead worker may have begun: at most one runs.
        self._suspect: Taken | None = None
        in_flight.start()

    @property
    def held(self) -> list[Taken]:
        return self._in_flight.held

    def turn(self, wait: float) -> int:
        """Submit redelivered and new tasks, and return how many are held."""
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
        others = self._run(self._fetcher.entered(others, chained=False))
        in_flight.submit([*others, *(task for task in single if self._admitted(task))])
        room = self._free_room()
        if room <= 0:
            in_flight.until(lambda: self._free_room() > 0, self._look_every)
            return handled + 1
        batch = self._take(room)
        if self._suspect is not None and not batch and not handled:
            # The next one may run as soon as this one has ended.
            in_flight.until(partial(in_flight.is_settled, self._suspect), _SHORT_WAIT)
        elif not batch and wait and not handled:
            # While tasks run, a retry may become due at any moment.
            wait = min(wait, _SHORT_WAIT) if in_flight.held else wait
            batch = self._wait(room, wait)
        handled += len(batch)
        if self._consumer.asks_first:
            for task in batch:
                if self._fetcher.apart(task):
                    self._submit(task)
            batch = [task for task in batch if not self._fetcher.apart(task)]
            batch = self._run(self._fetcher.entered(batch, chained=False))
        in_flight.submit(batch)
        return handled + len(in_flight.held)

    def settle(self) -> int:
        """Wait until all tasks are settled."""
        self._in_flight.until(lambda: not self._in_flight.held, None)
        if self._in_flight.failure is not None:
            raise self._in_flight.failure
        return 0

    def let_go(self) -> None:
        """Do nothing: the pool returns the tasks that have not started."""

    def relieve(self) -> None:
        self._acker.give_back(self._in_flight.excess())

    def close(self) -> None:
        self._in_flight.close()

    def _free_room(self) -> int:
        return self._room(self._in_flight.room, len(self._in_flight.held))

    def _submit(self, task: Taken) -> None:
        if self._admitted(task):
            self._in_flight.submit([task])
