"""The ways in which an agent talks; this one is by a blocking bus."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol, cast

import agentbus
from agentbus.coordination.message import Message
from agentbus.core.stream import text
from agentbus.store.steps import Command
from agentbus.torture.talk.role import Role

if TYPE_CHECKING:
    from agentbus.store.steps import Op

# Long enough for most outages, and short enough for some to end with an outcome that is unknown.
DEADLINE = 2.5
Heard = Generator[Message, None, None]


class Voice(Protocol):
    """What an agent can do.

    `tells_leaving` is whether one who stops listening amid a page learns that the cursor did not move.
    """

    tells_leaving: bool

    def speak(self, said: str, topic: str | None) -> str:
        """Say something, and return its id."""

    def overhear(self, topic: str | None, limit: int, wait: float) -> Heard:
        """Iterate over what is new, waiting for it at most so many seconds."""

    def cursor(self, topic: str | None) -> str:
        """Return the position from which this agent will hear."""

    def jot(self, key: str, value: str, *, if_absent: bool) -> None:
        """Write a note."""

    def recall(self, key: str) -> str:
        """Return a note's text."""


class Blocking:
    """A `Bus`."""

    tells_leaving = True

    def __init__(self, role: Role) -> None:
        self._bus = agentbus.connect(
            role.url, project=role.project, agent=role.name, deadline=DEADLINE
        )
        self._bus.scope.channel_bound = role.bound

    def speak(self, said: str, topic: str | None) -> str:
        return self._bus.speak(said, topic=topic).id

    def overhear(self, topic: str | None, limit: int, wait: float) -> Heard:
        found = self._bus.overhear(topic, limit=limit, **waiting(wait))
        return cast("Heard", found)

    def cursor(self, topic: str | None) -> str:
        return self._bus._run("cursor", position_of(self._bus, topic))

    def jot(self, key: str, value: str, *, if_absent: bool) -> None:
        self._bus.jot(key, value, if_absent=if_absent)

    def recall(self, key: str) -> str:
        return self._bus.recall(key).value or ""


def voice_of(role: Role) -> Voice:
    """Return the way in which an agent of this kind talks."""
    # Each costs its process what it loads.
    if role.kind == "blocking":
        return Blocking(role)
    if role.kind == "asynchronous":
        from agentbus.torture.talk.asynchronous import Asynchronous

        return Asynchronous(role)
    from agentbus.torture.talk.controls import VOICES

    return VOICES[role.kind](role)


def waiting(wait: float) -> dict[str, Any]:
    """Return the options of an overhear that waits so long, or not at all."""
    return {"follow": True, "timeout": wait} if wait else {}


def position_of(bus: Any, topic: str | None) -> Op[str]:
    """Return where an agent's cursor stands, as the server keeps it."""
    found = yield Command("GET", bus.scope.keys.cursor(bus.agent, topic))
    return text(found or b"0-0")
