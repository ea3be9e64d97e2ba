"""Subscriptions: creates workers, and runs the handlers that decorators registered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

from agentbus.client.sharded import one_shard
from agentbus.core.errors import UsageError
from agentbus.core.signals import stopped_by_signals
from agentbus.workers.async_worker import AsyncMatchWorker, AsyncWorker
from agentbus.workers.loop import buried_error
from agentbus.workers.match import MatchWorker
from agentbus.workers.worker import Worker

if TYPE_CHECKING:
    from agentbus.queues.retry import Backoff
    from agentbus.workers.middleware import Middleware

Handler = TypeVar("Handler", bound=Callable[..., Any])
AnyWorker = TypeVar("AnyWorker", Worker, AsyncWorker)


class WorkerOptions(TypedDict, total=False):
    """The keyword arguments of `subscribe`."""

    group: str
    concurrency: int
    batch: bool
    attempts: int | None
    visibility: float | None
    drain: bool
    drain_timeout: float | None
    backoff: Backoff | Mapping[str, Backoff] | None
    count: int | None
    prefetch: int | None
    start: str
    middleware: Sequence[Middleware]


# Seconds after which the main thread wakes up to handle signals.
_GLANCE = 0.5


class _Subscribing(Generic[AnyWorker]):
    """Creates workers, and stores registered handlers in order of registration."""

    _registered: list[tuple[str, Callable[..., Any], WorkerOptions]] | None = None
    if TYPE_CHECKING:
        # The subclass for each kind of bus creates its own kind of worker.
        _worker: Callable[[str, Callable[..., Any], WorkerOptions], AnyWorker]

    if TYPE_CHECKING:

        @overload
        def subscribe(
            self, queue: str, handler: None = None, **options: Unpack[WorkerOptions]
        ) -> Callable[[Handler], Handler]: ...
        @overload
        def subscribe(
            self, queue: str, handler: Callable[..., Any], **options: Unpack[WorkerOptions]
        ) -> AnyWorker: ...

    def subscribe(
        self,
        queue: str,
        handler: Callable[..., Any] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> AnyWorker | Callable[[Handler], Handler]:
        """Return a worker that runs a handler for the tasks of a queue; `Worker` describes the options.

        Without a handler, it returns a decorator: `@bus.subscribe("mail")` registers a function, and `work`
        runs all registered functions. Raises `UsageError`.
        """
        if handler is None:
            return self._register(queue, options)
        return self._worker(queue, handler, options)

    def _register(self, queue: str, options: WorkerOptions) -> Callable[[Handler], Handler]:
        def decorate(handler: Handler) -> Handler:
            self._registered = [*(self._registered or ()), (queue, handler, options)]
            return handler

        return decorate

    def _workers(self, drain: bool, drain_timeout: float | None) -> list[AnyWorker]:
        if not self._registered:
            raise UsageError(
                "no handler is registered", hint="register one: @bus.subscribe('mail')"
            )
        ends: WorkerOptions = {"drain": True} if drain else {}
        if drain_timeout is not None:
            ends["drain_timeout"] = drain_timeout
        workers = []
        for queue, handler, options in self._registered:
            merged: WorkerOptions = {**options, **ends}
            workers.append(self.subscribe(queue, handler, **merged))
        return workers


class Subscriptions(_Subscribing["Worker"]):
    """The subscriptions of a blocking bus."""

    def _worker(self, queue: str, handler: Callable[..., Any], options: WorkerOptions) -> Worker:
        bus: Any = self
        return Worker(bus.at(queue).runner, queue, handler, **options)

    def subscribe_many(
        self, pattern: str, handler: Callable[..., Any], **options: Unpack[WorkerOptions]
    ) -> MatchWorker:
        """Return a worker that runs a handler for the tasks of all queues that match a pattern.

        `*` matches any characters, `?` one character, `[ab]` one of several; queues of the bus itself,
        whose names begin with `~`, match only a pattern that begins with `~`. New queues are discovered
        within 5 seconds. The handler gets the queue as `delivery.queue`. `MatchWorker` describes the
        options. Raises `UsageError`.
        """
        bus: Any = self
        one_shard(bus)
        return MatchWorker(bus.runner, pattern, handler, **options)

    def work(self, *, drain: bool = False, drain_timeout: float | None = None) -> int:
        """Run the registered handlers, each in its own worker and thread, until interrupted.

        With `drain`, it ends when the handlers' groups have nothing left, as described for `Worker`, and
        raises `TaskBuried` if one of their tasks became dead during the drain, or `TimedOut` after
        `drain_timeout` seconds. Returns the number of tasks done. In the main thread, SIGTERM and SIGINT
        end it after the running tasks, unless the program handles them; a second signal ends the process at
        once. A worker that fails stops the others, and its error is raised. Raises `UsageError` if no
        handler is registered.
        """
        return _run(self._workers(drain, drain_timeout))


class AsyncSubscriptions(_Subscribing["AsyncWorker"]):
    """The subscriptions of an asynchronous bus."""

    def _worker(
        self, queue: str, handler: Callable[..., Any], options: WorkerOptions
    ) -> AsyncWorker:
        bus: Any = self
        return AsyncWorker(bus.at(queue).runner, queue, handler, **options)

    def subscribe_many(
        self, pattern: str, handler: Callable[..., Any], **options: Unpack[WorkerOptions]
    ) -> AsyncMatchWorker:
        """Return a worker that runs a handler for the tasks of all queues that match a pattern.

        It is like `Bus.subscribe_many`, but returns a worker whose `run` is awaited.
        """
        bus: Any = self
        one_shard(bus)
        return AsyncMatchWorker(bus.runner, pattern, handler, **options)

    async def work(self, *, drain: bool = False, drain_timeout: float | None = None) -> int:
        """Run the registered handlers concurrently, each in its own worker, until cancelled.

        With `drain`, it ends when the handlers' groups have nothing left, as described for `Worker`, and
        raises `TaskBuried` if one of their tasks became dead during the drain, or `TimedOut` after
        `drain_timeout` seconds. Returns the number of tasks done. In the main thread, SIGTERM ends it after
        the running tasks, unless the program handles it; a second signal ends the process at once.
        `asyncio.run` cancels it at SIGINT, with the same effect. A worker that fails stops the others, and
        its error is raised. Raises `UsageError` if no handler is registered.
        """
        return await _arun(self._workers(drain, drain_timeout))


def _run(workers: Sequence[Worker]) -> int:
    def stop() -> None:
        for worker in workers:
            worker.stop()

    with stopped_by_signals(stop), ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker.run) for worker in workers]
        try:
            while True:
                # Wake up regularly: only the main thread handles signals, but any thread may
                # receive them.
                ended, going = wait(running, _GLANCE, FIRST_EXCEPTION)
                if not going or any(future.exception() for future in ended):
                    break
        finally:
            stop()
    done = sum(future.result() for future in running)
    _none_buried(workers)
    return done


async def _arun(workers: Sequence[AsyncWorker]) -> int:
    def stop() -> None:
        for worker in workers:
            worker.stop()

    with stopped_by_signals(stop):
        running = [asyncio.ensure_future(worker.run()) for worker in workers]
        try:
            done = sum(await asyncio.gather(*running))
        finally:
            stop()
            await asyncio.wait(running)
    _none_buried(workers)
    return done


def _none_buried(workers: Sequence[Worker] | Sequence[AsyncWorker]) -> None:
    error = buried_error((worker.queue, worker.group, worker.buried) for worker in workers)
    if error is not None:
        raise error
