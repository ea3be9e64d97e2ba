"""How an agent talks: by a blocking bus, or by an asynchronous one."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import agentbus
from agentbus.coordination.message import Message
from agentbus.core.stream import text
from agentbus.store.steps import Command
from agentbus.torture.assignment import Assignment

if TYPE_CHECKING:
    from agentbus.store.steps import Op

# Long enough for most outages, and short enough that the outcome of some operations is unknown.
_DEADLINE = 2.5
BLOCKING, ASYNCHRONOUS = "blocking", "asynchronous"
Overheard = Generator[Message, None, None]


class TalkClient:
    """Talks by a `Bus`.

    `knows_leaving` is whether the cursor stays when an overhear is left in the middle of a page.
    """

    knows_leaving = True

    def __init__(self, assignment: Assignment, connect: Any = agentbus.connect) -> None:
        self._bus: Any = connect(
            assignment.url,
            project=assignment.project,
            agent=assignment.name,
            deadline=_DEADLINE,
        )
        self._bus.scope.channel_bound = assignment.options["bound"]

    def _done(self, result: Any) -> Any:
        return result

    def speak(self, said: str, topic: str | None) -> str:
        """Say something, and return its id."""
        return str(self._done(self._bus.speak(said, topic=topic)).id)

    def overhear(self, topic: str | None, limit: int, wait: float) -> Overheard:
        """Iterate over new messages, waiting for them at most `wait` seconds."""
        waiting = {"follow": True, "timeout": wait} if wait else {}
        return self._each(self._bus.overhear(topic, limit=limit, **waiting))

    def _each(self, source: Any) -> Overheard:
        return source  # type: ignore[no-any-return]

    def cursor(self, topic: str | None) -> str:
        """Return the position of this agent's cursor."""

        def op() -> Op[str]:
            found = yield Command("GET", self._bus.scope.keys.cursor(self._bus.agent, topic))
            return text(found or b"0-0")

        return str(self._done(self._bus._run("cursor", op())))

    def jot(self, key: str, value: str, *, if_absent: bool) -> None:
        """Write a note."""
        self._done(self._bus.jot(key, value, if_absent=if_absent))

    def recall(self, key: str) -> str:
        """Return a note's text."""
        return self._done(self._bus.recall(key)).value or ""


class AsynchronousTalk(TalkClient):
    """Talks by an `AsyncBus`, in a loop that runs as long as each operation."""

    knows_leaving = False

    def __init__(self, assignment: Assignment) -> None:
        import asyncio

        import agentbus.client.aio

        self._runner = asyncio.Runner()
        super().__init__(assignment, agentbus.client.aio.connect)

    def _done(self, result: Any) -> Any:
        return self._runner.run(result)

    def _each(self, source: Any) -> Overheard:
        async def following() -> Message | None:
            return await anext(source, None)

        try:
            while (message := self._done(following())) is not None:
                yield message
        finally:
            self._done(source.aclose())
