"""All that the agents wrote down, in the shape in which it is judged."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from agentbus.core.stream import position
from agentbus.torture.history import FAIL, INVOKE, OK, Entry
from agentbus.torture.talk.agent import (
    CLAIM,
    GAP,
    HEARD,
    JOT,
    LIFE,
    RECALL,
    SPEAK,
    SURE,
    TORN,
)

# A stream id's two numbers.
Position: TypeAlias = tuple[int, int]
# An agent, and the topic that it listens to with a cursor of its own, or None.
Reading: TypeAlias = tuple[str, str | None]


class Said(NamedTuple):
    """A message that was invoked: `phase` is how that ended (`invoke`: by a death), `id` what it got."""

    agent: str
    number: int
    topic: str | None
    phase: str = INVOKE
    id: Position | None = None


class Content(NamedTuple):
    """An entry of the channel, as an agent heard it."""

    agent: str
    text: str
    topic: str | None
    event: str | None = None


class Heard(NamedTuple):
    """An entry was handed over."""

    id: Position


class Gap(NamedTuple):
    """It was told that so many entries were missed."""

    missed: int


class Sure(NamedTuple):
    """A listening ended well, and the server gave this as the cursor."""

    cursor: Position


class Torn(NamedTuple):
    """A listening ended by a death or an error: what was heard since the cursor may come again."""


Step: TypeAlias = Heard | Gap | Sure | Torn
TORN_OFF = Torn()


class Noted(NamedTuple):
    """A note that was written (`jot`), written if absent (`claim`), or read (`recall`), in ns.

    `phase` and `ended` are as with `Said`; `value` is what was written or read, None for no such note.
    """

    agent: str
    op: str
    key: str
    phase: str
    invoked: int
    ended: int
    value: str | None


class Story(NamedTuple):
    """All that is known at the end of a run.

    `said` is by text, `entries` is what anybody heard under an id, `readings` what each cursor's reader
    lived through, in order. `ended` are processes that ended by themselves, `late` those that had not
    heard all in time.
    """

    said: Mapping[str, Said]
    entries: Mapping[Position, frozenset[Content]]
    readings: Mapping[Reading, Sequence[Step]]
    notes: Sequence[Noted] = ()
    ended: Sequence[str] = ()
    late: Sequence[str] = ()


class Teller:
    """Makes a story of what is written down, line by line, and keeps little of each line."""

    def __init__(self) -> None:
        self.said: dict[str, Said] = {}
        self.readings: dict[Reading, list[Step]] = collections.defaultdict(list)
        self.notes: list[Noted] = []
        self._entries: dict[Position, set[Content]] = collections.defaultdict(set)
        # One object for all that heard it: there are a million of these.
        self._heard: dict[str, Heard] = {}
        self._texts: dict[str, str] = {}
        self._asked: dict[str, Entry] = {}

    def saw(self, entry: Entry) -> None:
        """Take in one line."""
        if entry.op == HEARD:
            self._hear(entry)
        elif entry.op == SPEAK:
            self._speak(entry)
        elif entry.op == GAP:
            self._step(entry, Gap(entry.of["m"]))
        elif entry.op == SURE:
            self._step(entry, Sure(position(entry.of["c"])))
        elif entry.op == TORN:
            self._step(entry, TORN_OFF)
        elif entry.op == LIFE:
            self._begin(entry.who)
        elif entry.op in (JOT, CLAIM, RECALL):
            self._note(entry)

    def story(self, ended: Sequence[str], late: Sequence[str]) -> Story:
        """Return all that was told."""
        for entry in self._asked.values():
            self._cut_off(entry)
        self._asked.clear()
        found = {at: frozenset(contents) for at, contents in self._entries.items()}
        return Story(self.said, found, self.readings, self.notes, ended, late)

    def _step(self, entry: Entry, step: Step) -> None:
        self.readings[entry.who, entry.of["r"]].append(step)

    def _hear(self, entry: Entry) -> None:
        of = entry.of
        heard = self._heard.get(of["i"])
        if heard is None:
            heard = self._heard[of["i"]] = Heard(position(of["i"]))
        self.readings[entry.who, of["r"]].append(heard)
        text = self._texts.setdefault(of["t"], of["t"])
        self._entries[heard.id].add(Content(of["a"], text, of["o"], of["e"]))

    def _speak(self, entry: Entry) -> None:
        number = entry.of["n"]
        if entry.phase == INVOKE:
            self._asked[entry.who] = entry
            text = self._texts.setdefault(entry.of["t"], entry.of["t"])
            self.said[text] = Said(entry.who, number, entry.of["o"])
            return
        asked = self._asked.pop(entry.who)
        found = position(entry.of["i"]) if entry.phase == OK else None
        text = asked.of["t"]
        self.said[text] = self.said[text]._replace(phase=entry.phase, id=found)

    def _note(self, entry: Entry) -> None:
        if entry.phase == INVOKE:
            self._asked[entry.who] = entry
            return
        asked = self._asked.pop(entry.who)
        key, value = entry.of["k"], entry.of.get("v")
        self.notes.append(Noted(entry.who, entry.op, key, entry.phase, asked.at, entry.at, value))

    def _begin(self, who: str) -> None:
        for reading, steps in self.readings.items():
            if reading[0] == who:
                steps.append(TORN_OFF)
        if who in self._asked:
            self._cut_off(self._asked.pop(who))

    def _cut_off(self, asked: Entry) -> None:
        if asked.op in (JOT, CLAIM):
            of = asked.of
            self.notes.append(
                Noted(asked.who, asked.op, of["k"], INVOKE, asked.at, asked.at, of["v"])
            )


def acknowledged(story: Story) -> dict[Position, Said]:
    """Return the messages that were acknowledged, by id."""
    return {said.id: said for said in story.said.values() if said.id is not None}


def figures(story: Story) -> dict[str, Any]:
    """Return what was done, in numbers."""
    phases = collections.Counter(said.phase for said in story.said.values())
    steps = collections.Counter(
        type(step).__name__ for found in story.readings.values() for step in found
    )
    return {
        "messages": len(story.said),
        "acknowledged": phases[OK],
        "unknown": len(story.said) - phases[OK] - phases[FAIL],
        "heard": steps["Heard"],
        "gaps": steps["Gap"],
        "torn": steps["Torn"],
        "notes": len(story.notes),
    }
