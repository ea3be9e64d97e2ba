"""Agents that talk as many programs do, and lose or double messages: the checks must catch them."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import agentbus
from agentbus.coordination.message import Message
from agentbus.coordination.overhear import heard
from agentbus.core.keys import Keys
from agentbus.core.stream import position
from tests.torture.assignment import Assignment
from tests.torture.plain import library_errors, plain_client

_FEW = 20
_POLL = 0.2


class PlainTalk:
    """Talks by plain commands, without a script; takes notes as its bus does."""

    _bound = 0
    # Whether a message that was not answered may have been said, and is not repeated.
    _unsure = True

    def __init__(self, bus: agentbus.Bus, assignment: Assignment) -> None:
        self.jot, self.recall = bus.jot, bus.recall
        self._keys = Keys(assignment.project)
        self._name = assignment.name
        self._raw: Any = plain_client(assignment.url, retry=None, decode_responses=True)
        self._bound = self._bound or assignment.options["bound"]

    def speak(self, said: str, *, topic: str | None) -> SimpleNamespace:
        """Say something."""
        named = {"agent_id": self._name, "message": said}
        if topic is not None:
            named["topic"] = topic
        with library_errors(unsure=self._unsure):
            added = self._raw.xadd(self._keys.channel, named, maxlen=self._bound, approximate=False)
            return SimpleNamespace(id=added)

    def overhear(
        self, topic: str | None, *, limit: int, follow: bool = False, timeout: float = 0.0
    ) -> Generator[Message, None, None]:
        """Iterate over new messages, waiting for them at most `timeout` seconds."""
        with library_errors():
            last, entries = self._cursor(topic), self._new(topic, limit, timeout)
        for entry, message in entries:
            if topic is None or message.topic == topic:
                yield message
            last = entry
        with library_errors():
            self._raw.set(self._keys.cursor(self._name, topic), last)

    def _new(self, topic: str | None, limit: int, wait: float) -> list[tuple[str, Message]]:
        channel = self._keys.channel
        block = max(1, round(wait * 1000)) if wait else None
        found = self._raw.xread({channel: self._cursor(topic)}, count=limit, block=block)
        return [_message(*entry) for _, entries in found for entry in entries]

    def _cursor(self, topic: str | None) -> str:
        return self._raw.get(self._keys.cursor(self._name, topic)) or "0-0"


class PollById(PlainTalk):
    """Looks at the newest few now and then, and takes those after its last id."""

    def overhear(
        self, topic: str | None, *, limit: int, follow: bool = False, timeout: float = 0.0
    ) -> Generator[Message, None, None]:
        time.sleep(max(timeout, _POLL))
        with library_errors():
            newest = self._raw.xrevrange(self._keys.channel, count=_FEW)
            last = self._cursor(topic)
            new = [_message(*one) for one in newest if position(one[0]) > position(last)]
            if new:
                self._raw.set(self._keys.cursor(self._name, topic), new[0][0])
        for _, message in reversed(new):
            if topic is None or message.topic == topic:
                yield message


class MaxLen(PlainTalk):
    """Keeps so few entries that a slow agent misses some, and reports no gap."""

    _bound = _FEW


class SayAgain(PlainTalk):
    """Repeats what was not answered, which may have been said."""

    _unsure = False


def _message(entry: str, named: dict[str, str]) -> tuple[str, Message]:
    found = heard(entry, named)
    return found.id, found


CONTROLS: Mapping[str, type[PlainTalk]] = {
    "poll_by_id": PollById,
    "maxlen": MaxLen,
    "say_again": SayAgain,
}
