"""Records the runs and outcomes of a handler, without changing its behaviour."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any

from agentbus.workers.executors import is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentbus.queues.delivery import Delivery


class Journal:
    """By task id: the number of runs, the last error, and the payload if done, in order."""

    def __init__(self) -> None:
        self.runs: dict[str, int] = {}
        self.errors: dict[str, BaseException] = {}
        self.done: dict[str, Any] = {}
        # Handlers may run concurrently in threads.
        self._guard = threading.Lock()

    def keep(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler of the same kind whose runs are recorded."""

        @functools.wraps(handler)
        def plain(given: Any) -> Any:
            with self._run(given):
                result = handler(given)
                if not inspect.isawaitable(result):
                    return result
            return finish(given, result)

        async def finish(given: Any, result: Any) -> Any:
            with self._run(given, counted=True):
                return await result

        @functools.wraps(handler)
        async def asynchronous(given: Any) -> Any:
            with self._run(given):
                return await handler(given)

        return asynchronous if is_async(handler) else plain

    @contextlib.contextmanager
    def _run(self, given: Any, *, counted: bool = False) -> Iterator[None]:
        deliveries: list[Delivery] = given if isinstance(given, list) else [given]
        tasks = [delivery.id for delivery in deliveries]
        with self._guard:
            for task in tasks:
                self.done.pop(task, None)
                self.runs[task] = self.runs.get(task, 0) + (not counted)
        try:
            yield
        except BaseException as error:
            with self._guard:
                self.errors.update(dict.fromkeys(tasks, error))
            raise
        with self._guard:
            for task, delivery in zip(tasks, deliveries, strict=True):
                if delivery.acked or not delivery.settled:
                    self.done[task] = delivery.payload
