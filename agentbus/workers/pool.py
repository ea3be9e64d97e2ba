"""Runs a handler for several tasks at once; each is reported when it ends, so that none delays others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from agentbus.workers.executors import Coroutines, Inline, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.claimed import Taken
    from agentbus.workers.executors import Wrap


class Pool:
    """Runs a handler for several tasks at once, and reports each when it ends."""

    def __init__(
        self,
        executor: Inline | Coroutines,
        concurrency: int,
        stopping: Callable[[], bool],
        report: Callable[[TaskOutcome | Taken, float], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._executor = executor
        self._stopping = stopping
        self._report = report
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        if isinstance(executor, Inline):
            self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="agentbus-handler")
            return
        self._free = asyncio.Semaphore(concurrency)
        self._loop = loop
        if loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="agentbus-handlers", daemon=True
            )
            self._thread.start()

    def cancel(self, task: Taken) -> None:
        """Interrupt the handler of a cancelled task, if that is possible; thread-safe."""
        self._executor.cancel(task)

    def submit(self, tasks: Sequence[Taken], wrap: Wrap) -> None:
        """Submit tasks; those not started when the worker stops are reported as not begun."""
        self._executor.look()
        if self._threads is not None:
            for task in tasks:
                self._threads.submit(self._in_thread, task, wrap)
        elif self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._start, list(tasks), wrap)
            except RuntimeError:
                # The caller has closed its loop.
                for task in tasks:
                    self._report(TaskOutcome(task, begun=False), 0.0)
                raise

    def _in_thread(self, task: Taken, wrap: Wrap) -> None:
        assert isinstance(self._executor, Inline)
        began = time.monotonic()
        outcome = (
            TaskOutcome(task, begun=False) if self._stopping() else self._executor.one(task, wrap)
        )
        self._report(outcome, time.monotonic() - began)

    def _start(self, tasks: Sequence[Taken], wrap: Wrap) -> None:
        assert self._loop is not None
        for task in tasks:
            # The loop keeps only weak references to its tasks.
            started = self._loop.create_task(self._guarded(task, wrap))
            self._running.add(started)
            started.add_done_callback(self._running.discard)

    async def _guarded(self, task: Taken, wrap: Wrap) -> None:
        assert isinstance(self._executor, Coroutines)
        began = time.monotonic()
        outcome: TaskOutcome | Taken = TaskOutcome(task, begun=False)
        # Even if cancelled: a task that is not reported would be held forever.
        with contextlib.suppress(asyncio.CancelledError):
            async with self._free:
                began = time.monotonic()
                if not self._stopping():
                    outcome = await self._executor.one(task, wrap)
        self._report(outcome, time.monotonic() - began)
        if self._thread is None and self._executor.interrupted is not None:
            # An interrupt in the caller's loop is raised there.
            raise self._executor.interrupted

    def close(self) -> None:
        """Stop the threads or the pool's own event loop; no handler may be running."""
        if self._threads is not None:
            self._threads.shutdown()
        if self._thread is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = None
        self._executor.close()
