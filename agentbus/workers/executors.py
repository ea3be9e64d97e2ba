"""Runs handlers: plain or asynchronous, one by one, side by side, or in batches.

A serial performer is called with tasks and returns what became of each: the task itself where it is
done and there is nothing else to say, else an `Outcome`. A pool is handed tasks and reports each when it
has ended, so that a slow one keeps no other waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agentbus.core.context import current
from agentbus.queues import tracing
from agentbus.queues.retry import Bury, Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery

    Wrap = Callable[[Taken], AnyDelivery]
    Handler = Callable[[Any], Any]


class Outcome:
    """What became of one task: a result, an error, settled by its handler, or not begun."""

    __slots__ = ("acked", "after", "begun", "bury", "error", "result", "settled", "task", "took")

    def __init__(self, task: Taken, result: object = None) -> None:
        self.task = task
        self.result = result
        self.error: BaseException | str | None = None
        self.after: float | None = None
        self.bury = False
        self.settled = False
        self.acked = False
        self.begun = True
        # Seconds.
        self.took = 0.0

    @property
    def plain(self) -> bool:
        """Whether it is done and there is nothing else to say."""
        return self.error is None and self.result is None and not self.settled and self.begun

    def failed(self, error: BaseException | str) -> None:
        """Note an error, and what it asks for."""
        self.error = error
        if isinstance(error, Retry):
            self.after = error.after
        self.bury = isinstance(error, (Bury, str))


class _Watched:
    """Knows whether there is anybody to tell of the runs to come."""

    _traced = False

    def look(self) -> None:
        """See whether there is; asked once for a whole batch."""
        self._traced = tracing.tracer() is not None


class Inline(_Watched):
    """Runs a handler for each task, one after the other."""

    def __init__(self, handler: Handler, finish: Finish, stopping: Callable[[], bool]) -> None:
        self._handler = handler
        self._finish = finish
        self._stopping = stopping
        # What ended a handler and is no failure of its task: an interrupt, an exit.
        self.interrupted: BaseException | None = None

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome | Taken]:
        """Run the handler for each task, until stopped, and return what became of each."""
        outcomes: list[Outcome | Taken] = []
        self.look()
        add, stopping, one = outcomes.append, self._stopping, self.one
        try:
            for task in tasks:
                if stopping() or self.interrupted is not None:
                    break
                add(one(task, wrap))
        finally:
            current.set(None)
        return outcomes

    def one(self, task: Taken, wrap: Wrap) -> Outcome | Taken:
        """Run the handler for one task."""
        if task.error is not None:
            return _malformed(task)
        delivery = wrap(task)
        current.set(delivery)
        began = time.monotonic()
        try:
            if self._traced:
                result = tracing.handle(self._run, delivery)
            else:
                result = self._handler(delivery)
                if result is not None and inspect.isawaitable(result):
                    result = self._finish(result)
        except BaseException as error:  # noqa: BLE001 (it is kept)
            outcome = Outcome(task)
            outcome.failed(error)
            self.interrupted = _interrupt(error)
        else:
            if result is None and not delivery.settled:
                return task
            outcome = Outcome(task, result)
        return _ended(outcome, delivery, began)

    def _run(self, delivery: AnyDelivery) -> object:
        # A plain function may return a coroutine: unless it is run, nothing was done.
        result = self._handler(delivery)
        return self._finish(result) if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Nothing is open."""


class Coroutines(_Watched):
    """Runs an asynchronous handler for each task, one after the other, in an event loop."""

    def __init__(self, handler: Handler, finish: Finish, stopping: Callable[[], bool]) -> None:
        self._handler = handler
        self._finish = finish
        self._stopping = stopping
        # What ended a handler and is no failure of its task: an interrupt, an exit.
        self.interrupted: BaseException | None = None

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome | Taken]:
        """Run the handler for each task, until stopped, and return what became of each."""
        self.look()

        async def all_of_them() -> list[Outcome | Taken]:
            return [
                await self.one(task, wrap)
                for task in tasks
                if not self._stopping() and self.interrupted is None
            ]

        found: list[Outcome | Taken] = self._finish(all_of_them(), self._interrupt)
        return found

    def _interrupt(self, error: BaseException) -> None:
        self.interrupted = error

    async def one(self, task: Taken, wrap: Wrap) -> Outcome | Taken:
        """Run the handler for one task."""
        if task.error is not None:
            return _malformed(task)
        delivery = wrap(task)
        current.set(delivery)
        began = time.monotonic()
        try:
            if self._traced:
                result = await tracing.ahandle(self._handler, delivery)
            else:
                result = await self._handler(delivery)
        except BaseException as error:  # noqa: BLE001 (it is kept)
            outcome = Outcome(task)
            outcome.failed(error)
            self.interrupted = self.interrupted or _interrupt(error)
        else:
            if result is None and not delivery.settled:
                return task
            outcome = Outcome(task, result)
        return _ended(outcome, delivery, began)

    def close(self) -> None:
        """Close the loop, where it is a private one."""
        self._finish.close()


class Batches:
    """Runs a handler once for a whole list of tasks."""

    def __init__(self, handler: Handler, finish: Finish) -> None:
        self._handler = handler
        self._finish = finish
        # What ended a handler and is no failure of its tasks: an interrupt, an exit.
        self.interrupted: BaseException | None = None

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome | Taken]:
        """Run the handler for the tasks together; if it fails, each of them has failed."""
        outcomes: list[Outcome | Taken] = [
            _malformed(task) for task in tasks if task.error is not None
        ]
        sound = [task for task in tasks if task.error is None]
        deliveries = [wrap(task) for task in sound]
        began, error = time.monotonic(), None
        if deliveries:
            try:
                tracing.handle_all(self._run, deliveries)
            except BaseException as failure:  # noqa: BLE001 (it is kept)
                error = failure
                self.interrupted = _interrupt(failure)
        for task, delivery in zip(sound, deliveries, strict=True):
            outcome = _ended(Outcome(task), delivery, began)
            outcome.took /= len(sound)
            if error is not None:
                outcome.failed(error)
            outcomes.append(outcome)
        return outcomes

    def _run(self, deliveries: list[AnyDelivery]) -> None:
        result = self._handler(deliveries)
        if inspect.isawaitable(result):
            self._finish(result)

    def close(self) -> None:
        """Close the loop, where it is a private one."""
        self._finish.close()


class Pool:
    """Runs a handler for several tasks at once; each is reported when it has ended."""

    def __init__(
        self,
        runner: Inline | Coroutines,
        concurrency: int,
        stopping: Callable[[], bool],
        report: Callable[[Outcome | Taken, float], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._runner = runner
        self._stopping = stopping
        self._report = report
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        if isinstance(runner, Inline):
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

    def submit(self, tasks: Sequence[Taken], wrap: Wrap) -> None:
        """Have the handler run for tasks; those that have not begun when it is stopped never do."""
        self._runner.look()
        if self._threads is not None:
            for task in tasks:
                self._threads.submit(self._in_thread, task, wrap)
        elif self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._start, list(tasks), wrap)
            except RuntimeError:
                # The caller has closed its loop.
                for task in tasks:
                    self._report(_not_begun(task), 0.0)
                raise

    def _in_thread(self, task: Taken, wrap: Wrap) -> None:
        assert isinstance(self._runner, Inline)
        began = time.monotonic()
        outcome = _not_begun(task) if self._stopping() else self._runner.one(task, wrap)
        self._report(outcome, time.monotonic() - began)

    def _start(self, tasks: Sequence[Taken], wrap: Wrap) -> None:
        assert self._loop is not None
        for task in tasks:
            # The loop itself keeps no task alive.
            started = self._loop.create_task(self._guarded(task, wrap))
            self._running.add(started)
            started.add_done_callback(self._running.discard)

    async def _guarded(self, task: Taken, wrap: Wrap) -> None:
        assert isinstance(self._runner, Coroutines)
        began = time.monotonic()
        outcome: Outcome | Taken = _not_begun(task)
        # Whatever ends it: what is not reported would be in hand for good.
        with contextlib.suppress(asyncio.CancelledError):
            async with self._free:
                began = time.monotonic()
                if not self._stopping():
                    outcome = await self._runner.one(task, wrap)
        self._report(outcome, time.monotonic() - began)
        if self._thread is None and self._runner.interrupted is not None:
            # The loop is the caller's, and so is an interrupt.
            raise self._runner.interrupted

    def close(self) -> None:
        """Let the threads, or a loop of its own, end; nothing may be running."""
        if self._threads is not None:
            self._threads.shutdown()
        if self._thread is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = None
        self._runner.close()


class Finish:
    """Runs an awaitable to its end from a plain thread, in a loop of its own or in one that is running."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, *, keep: bool) -> None:
        self._shared = loop
        self._keep = keep
        self._own: asyncio.AbstractEventLoop | None = None

    def __call__(
        self, awaitable: Awaitable[Any], interrupted: Callable[[BaseException], None] | None = None
    ) -> Any:
        """Return what the awaitable comes to; it is cancelled when an interrupt comes, which is told."""
        if self._shared is not None:
            return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._shared).result()
        if not self._keep:
            # Several threads may come here at once.
            return asyncio.run(_awaited(awaitable))
        if self._own is None:
            self._own = asyncio.new_event_loop()
        running = self._own.create_task(_awaited(awaitable))
        try:
            return self._own.run_until_complete(running)
        except BaseException as error:
            if running.done() or interrupted is None:
                raise
            interrupted(error)
            running.cancel()
            return self._own.run_until_complete(running)

    def close(self) -> None:
        """Close the loop, where it is a private one."""
        if self._own is not None and not self._own.is_closed():
            self._own.run_until_complete(self._own.shutdown_asyncgens())
            self._own.close()
        self._own = None


def is_async(handler: Handler) -> bool:
    """Tell whether a handler is asynchronous; an object with an asynchronous call counts as such."""
    plain = handler
    while isinstance(plain, functools.partial):
        plain = plain.func
    call = plain if inspect.isroutine(plain) else type(plain).__call__
    return inspect.iscoroutinefunction(call)


def executor(
    handler: Handler,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Inline | Coroutines:
    """Return what runs this kind of handler for one task after the other."""
    if is_async(handler):
        return Coroutines(handler, Finish(loop, keep=True), stopping)
    return Inline(handler, Finish(loop, keep=False), stopping)


def _awaited(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    if inspect.iscoroutine(awaitable):
        return awaitable

    async def wait() -> Any:
        return await awaitable

    return wait()


def _ended(outcome: Outcome, delivery: AnyDelivery, began: float) -> Outcome:
    outcome.took = time.monotonic() - began
    outcome.settled, outcome.acked = delivery.settled, delivery.acked
    return outcome


def _interrupt(error: BaseException) -> BaseException | None:
    """Return an error that is more than its task's."""
    return None if isinstance(error, (Exception, asyncio.CancelledError)) else error


def _malformed(task: Taken) -> Outcome:
    outcome = Outcome(task)
    outcome.failed(f"the entry is malformed: {task.error}")
    return outcome


def _not_begun(task: Taken) -> Outcome:
    outcome = Outcome(task)
    outcome.begun = False
    return outcome
