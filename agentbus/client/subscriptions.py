"""All the workers of one process: how a bus makes them, and runs those that decorators registered."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.workers.async_worker import AsyncWorker
    from agentbus.workers.worker import Worker


class _Registering:
    """Makes workers, and keeps handlers and what they are for in the order of their registration."""

    _registered: list[tuple[str, Callable[..., Any], dict[str, Any]]] | None = None
    if TYPE_CHECKING:
        # Each kind of bus makes its own.
        _worker: Callable[[str, Callable[..., Any], dict[str, Any]], Any]

    def subscribe(
        self, queue: str, handler: Callable[..., Any] | None = None, **options: Any
    ) -> Any:
        """Return a worker that runs a handler for the tasks of a queue; see `Worker` for the options.

        Without a handler it is a decorator: `@bus.subscribe("mail")` registers a function, and `work`
        runs all that were registered.
        """
        if handler is None:
            return self._register(queue, options)
        return self._worker(queue, handler, options)

    def _register(self, queue: str, options: dict[str, Any]) -> Callable[[Any], Any]:
        def decorate(handler: Any) -> Any:
            self._registered = [*(self._registered or ()), (queue, handler, options)]
            return handler

        return decorate

    def _workers(self, subscribe: Callable[..., Any], drain: bool) -> list[Any]:
        if not self._registered:
            from agentbus.core.errors import UsageError

            raise UsageError(
                "there is no handler to work with", hint="register one: @bus.subscribe('mail')"
            )
        return [
            subscribe(queue, handler, **({**options, "drain": True} if drain else options))
            for queue, handler, options in self._registered
        ]


class Working(_Registering):
    """What a blocking bus does with workers."""

    def _worker(self, queue: str, handler: Callable[..., Any], options: dict[str, Any]) -> Worker:
        from agentbus.workers.worker import Worker

        bus: Any = self
        return Worker(bus.runner, queue, handler, **options)

    def work(self, *, drain: bool = False) -> int:
        """Run the handlers that decorators registered, each in a thread, until interrupted.

        With `drain`, until nothing is left. Returns how many tasks were done. One that fails stops the
        others, and its error is raised.
        """
        return _run(self._workers(self.subscribe, drain))


class AsyncWorking(_Registering):
    """What an asynchronous bus does with workers."""

    def _worker(
        self, queue: str, handler: Callable[..., Any], options: dict[str, Any]
    ) -> AsyncWorker:
        from agentbus.workers.async_worker import AsyncWorker

        bus: Any = self
        return AsyncWorker(bus.runner, queue, handler, **options)

    async def work(self, *, drain: bool = False) -> int:
        """Run the handlers that decorators registered, side by side, until cancelled.

        With `drain`, until nothing is left. Returns how many tasks were done. One that fails stops the
        others, and its error is raised.
        """
        return await _arun(self._workers(self.subscribe, drain))


def _run(workers: Sequence[Worker]) -> int:
    import threading

    failures: list[BaseException] = []

    def stop() -> None:
        for worker in workers:
            worker.stop()

    def work(worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 (raised below)
            failures.append(error)
            stop()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return sum(worker.done for worker in workers)


async def _arun(workers: Sequence[AsyncWorker]) -> int:
    import asyncio

    running = [asyncio.ensure_future(worker.run()) for worker in workers]
    try:
        return sum(await asyncio.gather(*running))
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.wait(running)
