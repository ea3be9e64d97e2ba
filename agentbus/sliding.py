"""Handlers side by side: each task is settled when it has ended, and its place is free."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from agentbus.errors import AgentBusError
from agentbus.taken import Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentbus.performing import Outcome, Pool
    from agentbus.settling import Settling

# Tasks for about so many seconds are taken ahead of those that run.
_AHEAD = 0.05


class Window:
    """The tasks that are in a worker's hands, and the thread that settles those that have ended."""

    def __init__(self, concurrency: int, most: int, settling: Settling) -> None:
        self._concurrency = concurrency
        self._most = max(most, concurrency)
        self._settling = settling
        self._held: dict[bytes, Taken] = {}
        self._ended: queue.SimpleQueue[Outcome | Taken | None] = queue.SimpleQueue()
        self._change = threading.Condition()
        self._rate = 0.0
        self._measured = time.monotonic()
        self.failure: AgentBusError | None = None
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

    def report(self, outcome: Outcome | Taken) -> None:
        """Take note that a task has ended; called by the pool, from any thread."""
        self._ended.put(outcome)

    def _settle(self) -> None:
        while (first := self._ended.get()) is not None:
            batch = [first]
            while len(batch) < self._most and not self._ended.empty():
                more = self._ended.get()
                if more is None:
                    self._ended.put(None)
                    break
                batch.append(more)
            try:
                done = self._settling.plain(batch)
                if done:
                    self._settling.ack(done, 0.0)
            except AgentBusError as failure:
                self.failure = failure
            self._let_go(batch)

    def _let_go(self, batch: Iterable[Outcome | Taken]) -> None:
        number = 0
        with self._change:
            for outcome in batch:
                task = outcome if isinstance(outcome, Taken) else outcome.task
                self._held.pop(_name(task), None)
                number += 1
            self._change.notify_all()
        now = time.monotonic()
        rate = number / max(now - self._measured, 1e-6)
        self._measured = now
        # Half of the past: quick to grow, and quick to give up where handlers turn slow.
        self._rate = (self._rate + rate) / 2


def _name(task: Taken) -> bytes:
    return task.priority.encode() + task.entry_id
