"""A worker on an asynchronous bus: its handlers run in the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.queues.runner import AsyncRunner


class AsyncWorker:
    """Runs a handler for the tasks of one queue, as `Worker` does.

    An asynchronous handler runs in the event loop in which the worker was made; a plain one runs in a
    thread. What the worker asks of the server blocks a thread of its own, never the loop.
    """

    def __init__(
        self, runner: AsyncRunner, queue: str, handler: Callable[..., Any], **options: Any
    ) -> None:
        self._worker = Worker(
            runner.blocking,
            queue,
            handler,
            loop=asyncio.get_running_loop(),
            # A handler's own requests go the way of the bus: threads are few in a loop.
            arun=partial(runner.run, verb="work"),
            **options,
        )

    @property
    def name(self) -> str:
        """The name of the consumer: `host:pid:random`."""
        return self._worker.name

    @property
    def queue(self) -> str:
        """The queue that it works on."""
        return self._worker.queue

    @property
    def group(self) -> str:
        """The group that it works for."""
        return self._worker.group

    @property
    def done(self) -> int:
        """How many tasks this worker has done and acknowledged."""
        return self._worker.done

    @property
    def failed(self) -> int:
        """How many runs of a handler have failed; their tasks are tried again, or were buried."""
        return self._worker.failed

    async def __aenter__(self) -> AsyncWorker:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.stop()
        await _in_thread(self._worker.close)

    def stop(self) -> None:
        """Stop after what runs now is finished and acknowledged; may be called from anywhere."""
        self._worker.stop()

    async def run(self) -> int:
        """Work until stopped (or, to drain, until nothing is left); returns how many tasks were done.

        Cancelled, it stops as `stop` does, and ends when what runs has ended.
        """
        done: int = await self._until_it_ends(self._worker.run)
        return done

    async def run_once(self, *, wait: float = 0.0) -> int:
        """Make one pass: what is to be delivered again, then one batch of new tasks, to its end."""
        handled: int = await self._until_it_ends(lambda: self._worker.run_once(wait=wait))
        return handled

    async def _until_it_ends(self, work: Callable[[], Any]) -> Any:
        # No task of the loop's: it is not to be cancelled with all of them when a program ends.
        working = _in_thread(work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([working])
            raise


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
        # A loop that was closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=run, name="agentbus-worker", daemon=True).start()
    return ended
