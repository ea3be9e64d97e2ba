"""Runs handlers: plain or asynchronous, one by one, side by side, or in batches."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agentbus.retry import Bury, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.consuming import Taken
    from agentbus.delivery import Delivery

    Wrap = Callable[[Taken], Delivery]


class Outcome:
    """What became of one task: done with a result, failed with an error, or settled by its handler."""

    __slots__ = ("acked", "after", "bury", "error", "result", "settled", "task", "took")

    def __init__(self, task: Taken, result: object = None) -> None:
        self.task = task
        self.result = result
        self.error: BaseException | str | None = None
        self.after: float | None = None
        self.bury = False
        self.settled = False
        self.acked = False
        self.took = 0.0

    @property
    def plain(self) -> bool:
        """Whether it is done and there is nothing else to say."""
        return self.error is None and self.result is None and not self.settled

    def failed(self, error: BaseException | str) -> None:
        """Note an error, and what it asks for."""
        self.error = error
        if isinstance(error, Retry):
            self.after = error.after
        self.bury = isinstance(error, (Bury, str))


class Inline:
    """Runs a handler for each task, one after the other."""

    def __init__(self, handler: Callable[[Delivery], Any], stopping: Callable[[], bool]) -> None:
        self.handler = handler
        self.stopping = stopping

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome]:
        """Run the handler for each task and return what became of each."""
        outcomes = []
        for task in tasks:
            if self.stopping():
                break
            outcomes.append(self.one(task, wrap))
        return outcomes

    def one(self, task: Taken, wrap: Wrap) -> Outcome:
        """Run the handler for one task."""
        if task.error is not None:
            return _malformed(task)
        delivery = wrap(task)
        try:
            outcome = Outcome(task, _finished(self.handler(delivery)))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (it is kept)
            outcome = Outcome(task)
            outcome.failed(error)
        outcome.settled, outcome.acked = delivery.settled, delivery.acked
        return outcome

    def close(self) -> None:
        """Nothing is open."""


class Threads(Inline):
    """Runs a handler for several tasks at once, each in a thread."""

    def __init__(
        self, handler: Callable[[Delivery], Any], concurrency: int, stopping: Callable[[], bool]
    ) -> None:
        super().__init__(handler, stopping)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="agentbus-handler")

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome]:
        """Run the handler for all tasks and return what became of each."""

        def unless_stopped(task: Taken) -> Outcome | None:
            return None if self.stopping() else self.one(task, wrap)

        return [outcome for outcome in self._pool.map(unless_stopped, tasks) if outcome]

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown()


class Coroutines:
    """Runs an asynchronous handler, for so many tasks at once, in a loop of its own."""

    def __init__(
        self, handler: Callable[[Delivery], Any], concurrency: int, stopping: Callable[[], bool]
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._stopping = stopping
        self._loop = asyncio.new_event_loop()

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome]:
        """Run the handler for all tasks and return what became of each."""
        return self._loop.run_until_complete(self._all(tasks, wrap))

    async def _all(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome]:
        if self._concurrency == 1:
            return [await self._one(task, wrap) for task in tasks if not self._stopping()]
        free = asyncio.Semaphore(self._concurrency)

        async def guarded(task: Taken) -> Outcome | None:
            async with free:
                return None if self._stopping() else await self._one(task, wrap)

        outcomes = await asyncio.gather(*(guarded(task) for task in tasks))
        return [outcome for outcome in outcomes if outcome]

    async def _one(self, task: Taken, wrap: Wrap) -> Outcome:
        if task.error is not None:
            return _malformed(task)
        delivery = wrap(task)
        try:
            outcome = Outcome(task, await self._handler(delivery))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (it is kept)
            outcome = Outcome(task)
            outcome.failed(error)
        outcome.settled, outcome.acked = delivery.settled, delivery.acked
        return outcome

    def close(self) -> None:
        """Close the loop."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Batches:
    """Runs a handler once for a whole list of tasks."""

    def __init__(self, handler: Callable[[list[Delivery]], Any]) -> None:
        self._handler = handler

    def __call__(self, tasks: Sequence[Taken], wrap: Wrap) -> list[Outcome]:
        """Run the handler for the tasks together; if it fails, each of them has failed."""
        outcomes = [_malformed(task) for task in tasks if task.error is not None]
        sound = [task for task in tasks if task.error is None]
        deliveries = [wrap(task) for task in sound]
        began, error = time.monotonic(), None
        if deliveries:
            try:
                _finished(self._handler(deliveries))
            except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 (it is kept)
                error = failure
        for task, delivery in zip(sound, deliveries, strict=True):
            outcome = Outcome(task)
            outcome.settled, outcome.acked = delivery.settled, delivery.acked
            outcome.took = (time.monotonic() - began) / len(sound)
            if error is not None:
                outcome.failed(error)
            outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """Nothing is open."""


def performer(
    handler: Callable[..., Any],
    *,
    concurrency: int,
    batch: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> Inline | Coroutines | Batches:
    """Return what runs this kind of handler; an object with an asynchronous call counts as such."""
    plain = handler
    while isinstance(plain, functools.partial):
        plain = plain.func
    call = plain if inspect.isroutine(plain) else type(plain).__call__
    if batch:
        return Batches(handler)
    if inspect.iscoroutinefunction(call):
        return Coroutines(handler, concurrency, stopping)
    if concurrency == 1:
        return Inline(handler, stopping)
    return Threads(handler, concurrency, stopping)


def _finished(result: Any) -> Any:
    # A plain function may return a coroutine: unless it is run, nothing was done.
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        return await result

    return asyncio.run(wait())


def _malformed(task: Taken) -> Outcome:
    outcome = Outcome(task)
    outcome.failed(f"the entry is malformed: {task.error}")
    return outcome
