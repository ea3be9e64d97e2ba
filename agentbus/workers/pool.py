"""Runs a handler for several tasks at once, and reports each when it ends, so that none delays others."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError
from agentbus.workers.batch import TaskOutcome
from agentbus.workers.executors import Coroutines, Inline

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.workers.executors import Wrap
    from agentbus.workers.heartbeat import Renewal
    from agentbus.workers.pause import Halt


class Pool:
    """Runs a handler for several tasks at once, and reports each when it ends.

    `waiting` holds the unstarted tasks.
    """

    def __init__(
        self,
        executor: Inline | Coroutines,
        concurrency: int,
        wrap: Wrap,
        stopping: Halt,
        report: Callable[[TaskOutcome | Taken, float], None],
        renewal: Renewal,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._executor = executor
        self._concurrency = concurrency
        self._wrap = wrap
        self._stopping = stopping
        self._report = report
        self._renewal = renewal
        self.waiting: deque[Taken] = deque()
        # One entry per thread that should look for tasks; None ends a thread.
        self._calls: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[None]] = set()
        if isinstance(executor, Inline):
            self._threads = [
                threading.Thread(target=self._work, args=(executor,), name="agentbus-handler")
                for _ in range(concurrency)
            ]
        else:
            self._threads = []
            self._loop = loop
            if loop is None:
                self._loop = asyncio.new_event_loop()
                self._threads.append(
                    threading.Thread(target=self._loop.run_forever, name="agentbus-handlers")
                )
        for number, thread in enumerate(self._threads):
            thread.daemon = True
            try:
                thread.start()
            except RuntimeError as error:
                self._threads = self._threads[:number]
                self.close()
                raise AgentBusError(
                    f"the system started only {number:,} of {concurrency:,} threads for handlers",
                    hint="lower the concurrency, or raise the limits of the system",
                ) from error

    def cancel(self, task: Taken) -> None:
        """Interrupt the handler of a cancelled task, if possible; thread-safe."""
        self._executor.cancel(task)

    def submit(self, tasks: Sequence[Taken]) -> None:
        """Submit tasks; those still unstarted when the worker stops are reported as not begun."""
        self._executor.look()
        self.waiting.extend(tasks)
        if self._loop is None:
            # Wake enough threads; each runs tasks until none is left.
            for _ in range(min(len(tasks), self._concurrency)):
                self._calls.put(True)
            return
        try:
            self._loop.call_soon_threadsafe(self._fill)
        except RuntimeError:
            # The caller has closed its event loop.
            for task in self.take_back(len(self.waiting)):
                self._report(TaskOutcome(task, begun=False), 0.0)
            raise

    def take_back(self, number: int) -> list[Taken]:
        """Take away the newest unstarted tasks; thread-safe."""
        tasks: list[Taken] = []
        with contextlib.suppress(IndexError):
            # Threads may start tasks at the same time.
            while len(tasks) < number:
                tasks.append(self.waiting.pop())
        return tasks[::-1]

    def _work(self, executor: Inline) -> None:
        clock, take, overdue = time.monotonic, self.waiting.popleft, self._renewal.overdue
        while self._calls.get():
            while True:
                try:
                    task = take()
                except IndexError:
                    # Other threads, or `take_back`, have taken the remaining tasks.
                    break
                began = clock()
                if self._stopping() or (overdue(began) and not self._caught_up(began)):
                    self._report(TaskOutcome(task, begun=False), 0.0)
                    continue
                outcome = executor.run_one(task, self._wrap, began)
                if self._stopping.forked:
                    self._stopping.leave_child(getattr(outcome, "error", None))
                self._report(outcome, clock() - began)

    def _caught_up(self, now: float) -> bool:
        """Renew the tasks after the process was frozen; return whether that succeeded."""
        try:
            self._renewal.catch_up(now)
        except AgentBusError:
            # The execution loop raises the same error from its own requests.
            return False
        return True

    def _fill(self) -> None:
        """Start as many tasks as the concurrency allows."""
        assert self._loop is not None
        while self.waiting and len(self._running) < self._concurrency:
            try:
                task = self.waiting.popleft()
            except IndexError:
                return
            # Keep a reference: an event loop keeps only weak references to its tasks.
            started = self._loop.create_task(self._run_guarded(task))
            self._running.add(started)
            started.add_done_callback(partial(self._ended, task))

    def _ended(self, task: Taken, ended: asyncio.Task[None]) -> None:
        self._running.discard(ended)
        if ended.cancelled():
            # The coroutine was cancelled before its first step, and has not reported the task.
            self._report(TaskOutcome(task, begun=False), 0.0)
        self._fill()

    async def _run_guarded(self, task: Taken) -> None:
        """Run a task, and then waiting ones, until this coroutine is cancelled."""
        assert isinstance(self._executor, Coroutines)
        here = asyncio.current_task()
        assert here is not None
        while True:
            began = time.monotonic()
            outcome: TaskOutcome | Taken = TaskOutcome(task, begun=False)
            # Report the task even if it is cancelled; otherwise it would be held forever.
            with contextlib.suppress(asyncio.CancelledError):
                sure = not self._renewal.overdue(began)
                if not self._stopping() and (
                    sure or await asyncio.to_thread(self._caught_up, began)
                ):
                    outcome = await self._executor.run_one(task, self._wrap, began)
            self._stopping.leave_child(getattr(outcome, "error", None))
            self._report(outcome, time.monotonic() - began)
            if not self._threads and self._executor.interrupted is not None:
                # Raise an interrupt in the caller's event loop.
                raise self._executor.interrupted
            if here.cancelling() or not self.waiting:
                return
            # Let other coroutines of the event loop run between two tasks.
            await asyncio.sleep(0)
            try:
                task = self.waiting.popleft()
            except IndexError:
                return

    def close(self) -> None:
        """Stop the threads or the pool's own event loop; no handler may be running."""
        threads, self._threads = self._threads, []
        if threads and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
            asyncio.run_coroutine_threadsafe(
                self._loop.shutdown_default_executor(), self._loop
            ).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            thread.join()
        if threads and self._loop is not None:
            self._loop.close()
        self._executor.close()
