"""Who an agent is, and what it says: all that its process must know."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

TOPICS = ("build", "tests", "a%b:c")
NOTES = ("how", "why", "who:%")


class Role(NamedTuple):
    """What a process is told: who it is, and where it finds the others."""

    name: str
    number: int
    url: str
    project: str
    place: str
    seed: int
    messages: int
    bound: int
    kind: str

    @property
    def topics(self) -> tuple[str | None, ...]:
        """What it listens to, with a cursor each: for some agents a topic, and everything."""
        return (TOPICS[self.number // 3 % len(TOPICS)], None) if self.number % 3 == 0 else (None,)

    @property
    def history(self) -> pathlib.Path:
        """The file that it writes."""
        return pathlib.Path(self.place) / "histories" / self.name

    @property
    def gate(self) -> pathlib.Path:
        """The file that says how far one may go."""
        return pathlib.Path(self.place) / "gate"

    def word(self) -> str:
        """Return the role as one word of a command line."""
        return json.dumps(self)

    @classmethod
    def of(cls, word: str) -> Role:
        """Return the role that such a word is."""
        found: list[Any] = json.loads(word)
        return cls(*found)


def text_of(name: str, number: int) -> str:
    """Return what an agent says as its so-many-th message."""
    return f"{name} says {number}: ä\n{'x' * (number % 40)}"


def topic_of(number: int) -> str | None:
    """Return the topic of its so-many-th message."""
    return TOPICS[number % 7] if number % 7 < len(TOPICS) else None
