"""A worker on an asynchronous bus: its handlers run in the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.workers.worker import AnyWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.queues.runner import AsyncRunner


class AsyncWorker(AnyWorker):
    """Runs a handler for the tasks of one queue, as `Worker` does.

    An asynchronous handler runs in the event loop in which the worker was made; a plain one runs in a
    thread. The worker's own requests block a thread, never the loop.
    """

    def __init__(
        self, runner: AsyncRunner, queue: str, handler: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(
            runner.blocking,
            queue,
            handler,
            loop=asyncio.get_running_loop(),
            # A handler's own requests use the bus's connection: threads are few in a loop.
            arun=partial(runner.run, verb="work"),
            **options,
        )

    async def __aenter__(self) -> AsyncWorker:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await _in_thread(self._close)

    async def run(self) -> int:
        """Work until stopped (or, to drain, until nothing is left); returns how many tasks were done.

        Cancelled, it stops as `stop` does, and ends when the running tasks have ended.
        """
        return await self._until_it_ends(self._work)

    async def run_once(self, *, wait: float = 0.0) -> int:
        """Make one pass: redelivered tasks, then one batch of new ones, to its end."""
        return await self._until_it_ends(partial(self._pass, wait))

    async def _until_it_ends(self, work: Callable[[], int]) -> int:
        # Not a task of the loop: it must not be cancelled with all tasks when a program ends.
        working = _in_thread(work)
        try:
            done: int = await asyncio.shield(working)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([working])
            raise
        return done


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run something that lasts in a thread of its own; the loop's own threads are few."""
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
        # In a closed loop nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=run, name="agentbus-worker", daemon=True).start()
    return ended
