"""An agent that talks by an asynchronous bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import cast

import agentbus.client.aio
from agentbus.coordination.message import Message
from agentbus.torture.talk.role import Role
from agentbus.torture.talk.voices import DEADLINE, Heard, position_of, waiting


class Asynchronous:
    """An `AsyncBus`, in a loop that runs whenever something is asked of it."""

    tells_leaving = False

    def __init__(self, role: Role) -> None:
        self._runner = asyncio.Runner()
        self._bus = agentbus.client.aio.connect(
            role.url, project=role.project, agent=role.name, deadline=DEADLINE
        )
        self._bus.scope.channel_bound = role.bound

    def speak(self, said: str, topic: str | None) -> str:
        return self._runner.run(self._bus.speak(said, topic=topic)).id

    def overhear(self, topic: str | None, limit: int, wait: float) -> Heard:
        source = self._bus.overhear(topic, limit=limit, **waiting(wait))
        return self._each(cast("AsyncGenerator[Message, None]", source))

    def _each(self, source: AsyncGenerator[Message, None]) -> Heard:
        with closing(_Loop(self._runner, source)) as loop:
            while (message := loop.next()) is not None:
                yield message

    def cursor(self, topic: str | None) -> str:
        return self._runner.run(self._bus._run("cursor", position_of(self._bus, topic)))

    def jot(self, key: str, value: str, *, if_absent: bool) -> None:
        self._runner.run(self._bus.jot(key, value, if_absent=if_absent))

    def recall(self, key: str) -> str:
        return self._runner.run(self._bus.recall(key)).value or ""


class _Loop:
    """An asynchronous generator, taken from step by step."""

    def __init__(self, runner: asyncio.Runner, source: AsyncGenerator[Message, None]) -> None:
        self._runner = runner
        self._source = source

    def next(self) -> Message | None:
        async def _next() -> Message | None:
            return await anext(self._source, None)

        return self._runner.run(_next())

    def close(self) -> None:
        self._runner.run(self._source.aclose())
