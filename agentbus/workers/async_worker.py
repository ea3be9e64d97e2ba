"""A worker on an asynchronous bus: its handlers run in the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.core.signals import stopped_by_signals
from agentbus.workers.match import AnyMatchWorker
from agentbus.workers.worker import AnyWorker

if TYPE_CHECKING:
    from agentbus.queues.runner import AsyncRunner


class AsyncWorker(AnyWorker):
    """Runs a handler for the tasks of one queue, like `Worker`.

    An asynchronous handler runs in the event loop in which the worker was created, a synchronous one in a
    thread. The worker's own requests block a thread, never the event loop.
    """

    def __init__(
        self, runner: AsyncRunner, queue: str, handler: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(
            runner.blocking,
            queue,
            handler,
            **_in_callers_loop(runner),
            **options,
        )

    async def __aenter__(self) -> AsyncWorker:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await _in_thread(self._close)

    async def run(self) -> int:
        """Run until stopped (with `drain`, until nothing is left), and return the number of tasks done.

        If cancelled, or at SIGTERM in the main thread (unless the program handles it), the worker stops as
        by `stop`, and ends after the running tasks. Raises `TimedOut` after the `drain_timeout`.
        """
        with stopped_by_signals(self.stop):
            return await until_it_ends(self._work, self.stop)

    async def run_once(self, *, wait: float = 0.0) -> int:
        """Run the redelivered tasks, then one batch of new ones, and return the number of tasks run."""
        return await until_it_ends(partial(self._run_once, wait), self.stop)


class AsyncMatchWorker(AnyMatchWorker):
    """Runs a handler for the tasks of all queues that match a pattern, like `MatchWorker`.

    An asynchronous handler runs in the event loop in which the worker was created, a synchronous one in a
    thread.
    """

    def __init__(
        self, runner: AsyncRunner, pattern: str, handler: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(
            runner.blocking,
            pattern,
            handler,
            **_in_callers_loop(runner),
            **options,
        )

    async def run(self) -> int:
        """Run until stopped, and return the number of tasks done.

        If cancelled, or at SIGTERM in the main thread (unless the program handles it), the worker stops as
        by `stop`, and ends after the running tasks.
        """
        with stopped_by_signals(self.stop):
            return await until_it_ends(self._work, self.stop)


def _in_callers_loop(runner: AsyncRunner) -> dict[str, Any]:
    """Return the options of a worker whose handlers run in the caller's event loop."""
    # Handlers' requests use the bus's connection, because an event loop has few threads.
    return {"loop": asyncio.get_running_loop(), "arun": partial(runner.run, verb="work")}


async def until_it_ends(work: Callable[[], int], stop: Callable[[], None]) -> int:
    """Run a worker in a thread; if this coroutine is cancelled, stop the worker and wait for its end."""
    # Do not use an asyncio task, which asyncio.run would cancel with all others at its end.
    working = _in_thread(work)
    try:
        done: int = await asyncio.shield(working)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([working])
        raise
    return done


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run a long function in its own thread, because the event loop's executor has few threads."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def give(result: Any, error: BaseException | None) -> None:
        if ended.cancelled():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (it is handed over)
            failure = error
        # Nobody waits in a closed event loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=run, name="agentbus-worker", daemon=True).start()
    return ended
