"""An asynchronous bus as agents use a blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from agentbus.coordination.message import Message

BLOCKING, ASYNCHRONOUS = "blocking", "asynchronous"


class AsynchronousTalk:
    """An `AsyncBus`, in a loop that runs as long as each operation."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self._bus, name)
        return lambda *words, **options: self._runner.run(verb(*words, **options))

    def overhear(self, *topics: str, **options: Any) -> Generator[Message, None, None]:
        """Iterate over new messages."""
        source = self._bus.overhear(*topics, **options)

        async def following() -> Message | None:
            return await anext(source, None)

        try:
            while (message := self._runner.run(following())) is not None:
                yield message
        finally:
            self._runner.run(source.aclose())
