"""What the agents' histories say, in the shape that the checks judge."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from agentbus.core.stream import position
from tests.torture.history import FAIL, INVOKE, OK, HistoryEntry
from tests.torture.talk.agent import CLAIM, GAP, HEARD, JOT, LIFE, RECALL, SPEAK, SURE, TORN

# A stream id's two numbers.
Position: TypeAlias = tuple[int, int]
# An agent, and the topic that it overhears with its own cursor, or None.
Reading: TypeAlias = tuple[str, str | None]


class Spoken(NamedTuple):
    """A message: `phase` is its outcome (`invoke` if a death cut it off), `id` what the server answered."""

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


class ReadingStep(NamedTuple):
    """A step of a reading, by the operation in the history.

    `heard`: the entry `id` was delivered. `gap`: so many entries were reported as `missed`. `sure`: an
    overhear ended well, and the server gave the cursor `id`. `torn`: an overhear ended by a death or an
    error, and what was heard since the cursor may come again.
    """

    op: str
    id: Position = (0, 0)
    missed: int = 0


TORN_OFF = ReadingStep(TORN)


class NoteOperation(NamedTuple):
    """A note was written (`jot`), written if absent (`claim`), or read (`recall`); times in ns.

    `value` is what was written or read, None if there was no such note.
    """

    agent: str
    op: str
    key: str
    phase: str
    invoked: int
    ended: int
    value: str | None


class TalkEvidence(NamedTuple):
    """What is known at the end of a run.

    `said` is by text. `entries` is what any agent heard under an id. `readings` are the steps of each
    cursor's reader, in order.
    """

    said: Mapping[str, Spoken]
    entries: Mapping[Position, frozenset[Content]]
    readings: Mapping[Reading, Sequence[ReadingStep]]
    notes: Sequence[NoteOperation] = ()

    def acknowledged(self) -> dict[Position, Spoken]:
        """Return the acknowledged messages by id."""
        return {said.id: said for said in self.said.values() if said.id is not None}

    def figures(self) -> dict[str, int]:
        """Count messages, what became of them, and notes."""
        phases = collections.Counter(said.phase for said in self.said.values())
        steps = collections.Counter(x.op for found in self.readings.values() for x in found)
        return {
            "messages": len(self.said),
            "acknowledged": phases[OK],
            "unknown": len(self.said) - phases[OK] - phases[FAIL],
            "heard": steps[HEARD],
            "gaps": steps[GAP],
            "torn": steps[TORN],
            "notes": len(self.notes),
        }


class TalkCollector:
    """Collects the evidence line by line, and keeps little of each line."""

    def __init__(self) -> None:
        self.said: dict[str, Spoken] = {}
        self.readings: dict[Reading, list[ReadingStep]] = collections.defaultdict(list)
        self.notes: list[NoteOperation] = []
        self._entries: dict[Position, set[Content]] = collections.defaultdict(set)
        # One object for all agents that heard an entry: there are a million of these.
        self._heard: dict[str, ReadingStep] = {}
        self._texts: dict[str, str] = {}
        self._asked: dict[str, HistoryEntry] = {}

    def saw(self, entry: HistoryEntry) -> None:
        """Take one line."""
        who, op, of = entry.who, entry.op, entry.of
        if op == HEARD:
            self._hear(who, of)
        elif op in (GAP, SURE, TORN):
            step = ReadingStep(op, position(of.get("c", "0-0")), of.get("m", 0))
            self.readings[who, of["r"]].append(step)
        elif op == LIFE:
            for reading, steps in self.readings.items():
                if reading[0] == who:
                    steps.append(TORN_OFF)
            self._cut_off(self._asked.pop(who, None))
        elif op in (SPEAK, JOT, CLAIM, RECALL):
            asked = entry if entry.phase == INVOKE else self._asked.pop(who)
            if entry.phase == INVOKE:
                self._asked[who] = entry
            if op == SPEAK:
                self._speak(entry)
            elif entry.phase != INVOKE:
                self._note(asked, entry)

    def evidence(self) -> TalkEvidence:
        """Return what was collected; operations that have no outcome by now are cut off."""
        while self._asked:
            self._cut_off(self._asked.popitem()[1])
        found = {at: frozenset(contents) for at, contents in self._entries.items()}
        return TalkEvidence(self.said, found, self.readings, self.notes)

    def _hear(self, who: str, of: dict[str, Any]) -> None:
        heard = self._heard.get(of["i"])
        if heard is None:
            heard = self._heard[of["i"]] = ReadingStep(HEARD, position(of["i"]))
        self.readings[who, of["r"]].append(heard)
        text = self._texts.setdefault(of["t"], of["t"])
        self._entries[heard.id].add(Content(of["a"], text, of["o"], of["e"]))

    def _speak(self, entry: HistoryEntry) -> None:
        of = entry.of
        text = self._texts.setdefault(of["t"], of["t"])
        found = position(of["i"]) if entry.phase == OK else None
        self.said[text] = Spoken(entry.who, of["n"], of["o"], entry.phase, found)

    def _note(self, asked: HistoryEntry, ended: HistoryEntry) -> None:
        key, value = ended.of["k"], ended.of.get("v")
        self.notes.append(
            NoteOperation(ended.who, ended.op, key, ended.phase, asked.at, ended.at, value)
        )

    def _cut_off(self, asked: HistoryEntry | None) -> None:
        if asked is not None and asked.op in (JOT, CLAIM):
            self._note(asked, asked)
