"""The asynchronous bus: the same verbs, awaited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentbus.client.bus import Verbs
from agentbus.client.subscriptions import AsyncWorking
from agentbus.core.errors import AgentBusError
from agentbus.core.settings import Settings, resolve
from agentbus.store import async_driver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentbus.client.verb import Patient
    from agentbus.store.steps import Op

T = TypeVar("T")


class AsyncBus(AsyncWorking, Verbs):
    """An asynchronous bus: a thousand coroutines may wait on a handful of connections."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._link = self.backend.alink()
        # For workers, each of which has a thread that asks.
        self._blocking = self.backend.link()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; whoever still waits is told so."""
        self._blocking.close()
        await self._link.aclose()

    async def _run(self, name: str, op: Op[T] | Patient[T]) -> T:
        began = time.monotonic()
        try:
            result = await async_driver.run(self._link, self._attempt(op))
        except AgentBusError as error:
            self._record(name, began, error)
            raise
        self._record(name, began, None)
        return result

    def _iterate(self, name: str, op: Patient[Any]) -> AsyncIterator[Any]:
        return async_driver.iterate(self._link, self._attempt(op))


def connect(
    url: str | None = None,
    *,
    project: str | None = None,
    agent: str | None = None,
    deadline: float | None = None,
) -> AsyncBus:
    """Return an asynchronous bus, for `async with`; settings as for `agentbus.connect`."""
    return AsyncBus(resolve({"url": url, "project": project, "agent": agent, "deadline": deadline}))


__all__ = ["AsyncBus", "connect"]
