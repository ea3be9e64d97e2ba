"""The asynchronous bus: the same verbs, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentbus.client import preload
from agentbus.client.bus import Verbs
from agentbus.client.subscriptions import AsyncSubscriptions
from agentbus.core.settings import Settings, resolve
from agentbus.queues.runner import AsyncRunner
from agentbus.store.verb import Awaiting, Patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from agentbus.store.steps import Op

T = TypeVar("T")


class AsyncBus(AsyncSubscriptions, Verbs, Awaiting):
    """An asynchronous bus; all coroutines of an event loop share its few connections."""

    runner: AsyncRunner

    def __init__(self, settings: Settings) -> None:
        self.runner = AsyncRunner(settings)
        super().__init__(self.runner)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; operations in progress raise `BackendUnavailable`."""
        await self.runner.aclose()
        if self._sharded is not None and self._sharded.home is self:
            for bus in self._sharded.opened():
                await bus.aclose()

    def _run(self, name: str, op: Op[T] | Patient[T]) -> Coroutine[Any, Any, T]:
        if isinstance(op, Patient):
            return self.runner.run(op.op, verb=name, patience=op.seconds)
        return self.runner.run(op, verb=name)

    def _iterate(self, name: str, op: Patient[Any]) -> AsyncIterator[Any]:
        return self.runner.iterate(op.op, op.seconds, verb=name)


def connect(
    url: str | None = None,
    *,
    project: str | None = None,
    agent: str | None = None,
    deadline: float | None = None,
) -> AsyncBus:
    """Return an asynchronous bus, for `async with`; the arguments are those of `agentbus.connect`."""
    preload.load()
    return AsyncBus(resolve({"url": url, "project": project, "agent": agent, "deadline": deadline}))


__all__ = ["AsyncBus", "connect"]
