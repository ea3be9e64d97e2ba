"""Handlers side by side: each task is settled when it has ended, and its place is free."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError
from agentbus.queues.claimed import Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentbus.workers.acker import Settling
    from agentbus.workers.duty import Duty
    from agentbus.workers.executors import Outcome, Pool

if TYPE_CHECKING:
    _Ended = tuple[Outcome | Taken, float]
_LONGEST_WAIT = 1.0
_SHORT_WAIT = 0.1
# Tasks for about so many seconds are taken ahead of those that run.
_AHEAD = 0.05
_MEASURE_EVERY = 0.25


class Window:
    """The tasks that are in a worker's hands, and the thread that settles those that have ended."""

    def __init__(self, concurrency: int, most: int, settling: Settling) -> None:
        self._concurrency = concurrency
        self._most = max(most, concurrency)
        self._settling = settling
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
        """Begin to settle."""
        self._thread.start()

    def close(self) -> None:
        """End when all that is in hand is settled."""
        self.until(lambda: not self._held, None)
        self._ended.put(None)
        self._thread.join()
        if self.pool is not None:
            self.pool.close()

    @property
    def held(self) -> list[Taken]:
        """What is in hand."""
        return list(self._held.values())

    @property
    def room(self) -> int:
        """How many more tasks may be taken: those that run, and a moment's work ahead."""
        # Measured anew, since no task may have ended for a while.
        self._measure(0)
        ahead = int(self._rate * _AHEAD)
        return min(self._concurrency + ahead, self._most) - len(self._held)

    def submit(self, tasks: list[Taken], wrap: Callable[[Taken], Any]) -> None:
        """Hand tasks to the pool."""
        for task in tasks:
            self._held[_name(task)] = task
        assert self.pool is not None
        self.pool.submit(tasks, wrap)

    def holds(self, task: Taken) -> bool:
        """Tell whether a task is still in hand."""
        return _name(task) in self._held

    def until(self, happened: Callable[[], bool], seconds: float | None) -> None:
        """Wait until something has happened to the tasks in hand, or the time is over."""
        with self._change:
            self._change.wait_for(lambda: happened() or self.failure is not None, seconds)

    def report(self, outcome: Outcome | Taken, took: float) -> None:
        """Take note that a task has ended, after so many seconds; called by the pool, from any thread."""
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
                    self._settling.tally.ran(1, took)
            try:
                done = self._settling.plain(outcomes)
                if done:
                    self._settling.ack(done, sum(took for _, took in batch))
            except Exception as failure:  # noqa: BLE001 (the worker's own thread raises it)
                self.failure = failure
            self._let_go(outcomes)

    def _let_go(self, batch: Iterable[Outcome | Taken]) -> None:
        number = 0
        with self._change:
            for outcome in batch:
                task = outcome if isinstance(outcome, Taken) else outcome.task
                self._held.pop(_name(task), None)
                number += 1
            self._change.notify_all()
        self._measure(number)

    def _measure(self, number: int) -> None:
        """Count tasks that ended, and every so often how many do in a second."""
        with self._counting:
            self._count += number
            spent = time.monotonic() - self._measured
            if spent >= _MEASURE_EVERY:
                self._rate = self._count / spent
                self._count = 0
                self._measured += spent


def _name(task: Taken) -> bytes:
    return task.priority.encode() + task.entry_id


class Sliding:
    """Runs a handler for several tasks at once."""

    def __init__(self, duty: Duty, window: Window) -> None:
        self._duty = duty
        self._window = window
        self._suspects: threading.Thread | None = None
        window.start()

    @property
    def held(self) -> list[Taken]:
        """What is in hand."""
        return self._window.held

    def turn(self, wait: float) -> int:
        """Hand over what is to be delivered again, and new tasks; returns how many are in hand."""
        duty, window = self._duty, self._window
        if window.failure is not None:
            raise window.failure
        handled = 0
        room = self._room()
        for task in duty.allowed(lambda: duty.intake.retries(room, room)):
            self._submit(task)
            handled += 1
        duty.intake.recover(self._known)
        if duty.intake.reclaims and not (self._suspects and self._suspects.is_alive()):
            self._suspects = threading.Thread(target=self._one_by_one, daemon=True)
            self._suspects.start()
            if duty.limit is not None:
                # Two threads that take tasks would take too many.
                self._suspects.join()
        room = self._room()
        if room <= 0:
            window.until(lambda: self._room() > 0, _LONGEST_WAIT)
            return handled + 1
        batch = duty.take(room)
        if not batch and wait and not handled:
            # While tasks run, one that was put aside may fall due at any moment.
            wait = min(wait, _SHORT_WAIT) if window.held else wait
            batch = duty.within(duty.allowed(lambda: duty.intake.wait(room, wait)), room)
        handled += len(batch)
        if duty.task.asks_first:
            for task in batch:
                if task.asked_first:
                    self._submit(task)
            batch = [task for task in batch if not task.asked_first]
        window.submit(batch, duty.wrap)
        return handled + len(window.held)

    def settle(self) -> int:
        """Wait until nothing is in hand."""
        if self._suspects is not None:
            self._suspects.join()
        self._window.until(lambda: not self._window.held, None)
        if self._window.failure is not None:
            raise self._window.failure
        return 0

    def let_go(self) -> None:
        """Wait for what runs; what has not begun is given back by its place in the pool."""
        if self._suspects is not None:
            self._suspects.join()

    def close(self) -> None:
        """End the threads."""
        self._window.close()

    def _room(self) -> int:
        return self._duty.room(self._window.room, len(self._window.held))

    def _submit(self, task: Taken) -> None:
        if self._duty.intake.admitted(task):
            self._window.submit([task], self._duty.wrap)

    def _one_by_one(self) -> None:
        """Run what dead workers held: one at a time, beside first deliveries."""
        window = self._window
        try:
            for task in self._duty.intake.reclaimed():
                if self._duty.limit is not None:
                    # What runs may be all that is left to do.
                    window.until(self._free, None)
                if self._duty.halted:
                    self._duty.give_back([task])
                    continue
                self._submit(task)
                window.until(partial(_gone, window, task), None)
        except AgentBusError as failure:
            window.failure = failure

    def _free(self) -> bool:
        return self._duty.halted or self._room() > 0

    def _known(self, priority: str) -> list[bytes]:
        return [task.entry_id for task in self.held if task.priority == priority]


def _gone(window: Window, task: Taken) -> bool:
    return not window.holds(task)
