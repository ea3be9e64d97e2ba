"""Cursors against a model: everybody hears everything once, and is told of what was trimmed away."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from agentbus.core.stream import position
from tests.machines.base import Machine

AGENTS = ("ada", "bob")
TOPICS = ("build", "a:b")
agents = st.sampled_from(AGENTS)
listening = st.sampled_from([(), ("build", "a:b"), ("build",), ("a:b",)])
limits = st.sampled_from([1, 2, 3, None, 0, 100])


class Said(NamedTuple):
    """A message of the model."""

    id: str
    agent: str
    topic: str | None
    text: str


class Cursor(NamedTuple):
    """How many messages lie up to a cursor, and whether the bus can know that."""

    at: int
    known: bool


class Heard(NamedTuple):
    """What a reading comes to: what it missed, what it gives, how far it looked, if it knows where.

    `missed` is None if an unknown number of messages may be gone.
    """

    missed: int | None
    numbers: list[int]
    to: int | None
    known: bool


class CursorMachine(Machine):
    """Two agents speak and listen, each in several ways, on a channel that is trimmed now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Said] = []
        self.trimmed = 0
        self.cursors: dict[tuple[str, str | None], Cursor] = {}
        self._before: dict[tuple[str, str | None], str] = {}

    # -- what is done --

    @initialize(topics=st.lists(st.sampled_from([None, *TOPICS]), min_size=3, max_size=8))
    def something_was_said(self, topics: list[str | None]) -> None:
        for topic in topics:
            self.speak("bob", topic, 1)

    @rule(agent=agents, topic=st.sampled_from([None, *TOPICS]), count=st.integers(1, 3))
    def speak(self, agent: str, topic: str | None, count: int) -> None:
        for _ in range(count):
            said = self.bus(agent).speak(f"message {len(self.log)}", topic=topic)
            self.log.append(Said(said.id, agent, topic, said.text))

    @rule(kept=st.integers(0, 4))
    def another_program_trims_the_channel(self, kept: int) -> None:
        self.ask("XTRIM", self.keys.channel, "MAXLEN", "=", kept)
        self.trimmed = max(self.trimmed, len(self.log) - kept)

    @rule(agent=agents, topics=listening, limit=limits, others=st.booleans())
    def overhear(
        self, agent: str, topics: tuple[str, ...], limit: int | None, others: bool
    ) -> None:
        wanted = self._unheard(agent, topics, limit, others)
        found = list(self.bus(agent).overhear(topics, limit=limit, others=others))
        self._compare(found, wanted)
        self._advance(agent, topics, wanted.to, known=wanted.known)

    @rule(agent=agents, topics=listening, taken=st.integers(0, 4))
    def leave_in_the_midst(self, agent: str, topics: tuple[str, ...], taken: int) -> None:
        wanted = self._unheard(agent, topics, None, others=False)
        reading = self.bus(agent).overhear(topics, limit=None)
        found = list(itertools.islice(reading, taken))
        reading.close()

        if len(found) < taken:
            # It came to the end, and left nothing unheard.
            self._compare(found, wanted)
            self._advance(agent, topics, wanted.to, known=wanted.known)
            return
        self._compare(found, wanted, whole=False)
        # The one in hand was not heard to its end, and a gap is no message.
        heard = len(found) - 1 - (wanted.missed != 0)
        if heard > 0:
            known = wanted.known
            self._advance(agent, topics, wanted.numbers[heard - 1], known=known)

    @rule(agent=agents, topics=listening, taken=st.integers(1, 4))
    def two_programs_of_one_agent_listen(
        self, agent: str, topics: tuple[str, ...], taken: int
    ) -> None:
        # What the one is late to say must not take back what the other has said.
        wanted = self._unheard(agent, topics, None, others=False)
        slow = self.bus(agent).overhear(topics, limit=None)
        list(itertools.islice(slow, min(taken, len(wanted.numbers) + (wanted.missed != 0))))
        self.overhear(agent, topics, None, others=False)
        slow.close()

    @rule(agent=agents, topics=listening, limit=limits, others=st.booleans())
    def peek(self, agent: str, topics: tuple[str, ...], limit: int | None, others: bool) -> None:
        wanted = self._unheard(agent, topics, limit, others)
        found = list(self.bus(agent).overhear(topics, limit=limit, others=others, peek=True))
        self._compare(found, wanted._replace(missed=0))

    @rule(agent=agents, topics=listening, limit=limits, since=st.integers(0, 60))
    def since(self, agent: str, topics: tuple[str, ...], limit: int | None, since: int) -> None:
        number = min(since, len(self.log))
        start = self.log[number - 1].id if number else "0-0"
        wanted = [
            at
            for at in range(max(number, self.trimmed), len(self.log))
            if self._fits(at, topics, "")
        ][:limit]
        found = list(self.bus(agent).overhear(topics, limit=limit, since=start))
        self._compare(found, Heard(0, wanted, None, known=True))

    @rule(agent=agents, topics=listening, last=st.integers(0, 4), others=st.booleans())
    def last(self, agent: str, topics: tuple[str, ...], last: int, others: bool) -> None:
        omit = agent if others else ""
        fitting = [at for at in range(self.trimmed, len(self.log)) if self._fits(at, topics, omit)]
        found = list(self.bus(agent).overhear(topics, last=last, others=others))
        wanted = fitting[-last:] if last else []
        self._compare(found, Heard(0, wanted, None, known=True))

    @rule(agent=agents, topics=listening)
    def start_again(self, agent: str, topics: tuple[str, ...]) -> None:
        for topic in topics or (None,):
            self.cursors.pop((agent, topic), None)
            self._before.pop((agent, topic), None)
        wanted = self._unheard(agent, topics, None, others=False)
        found = list(self.bus(agent).overhear(topics, limit=None, reset=True))
        self._compare(found, wanted)
        self._advance(agent, topics, wanted.to, known=wanted.known)

    @rule(agent=agents, ahead=st.integers(1, 3), limit=limits)
    def another_program_moves_a_cursor_on(self, agent: str, ahead: int, limit: int | None) -> None:
        self.overhear(agent, (), None, others=False)
        self.speak("bob", None, 3)
        number = len(self.log) - 3 + ahead
        self.ask("SET", self.keys.cursor(agent), self.log[number - 1].id)
        self.cursors[agent, None] = Cursor(number, known=False)
        self.overhear(agent, (), limit, others=False)

    # -- the model --

    def _fits(self, number: int, topics: tuple[str, ...], omit: str) -> bool:
        said = self.log[number]
        return (not topics or said.topic in topics) and said.agent != omit

    def _unheard(
        self, agent: str, topics: tuple[str, ...], limit: int | None, others: bool
    ) -> Heard:
        if limit == 0:
            return Heard(0, [], None, known=True)
        cursors = {topic: self.cursors.get((agent, topic)) for topic in topics or (None,)}
        known_gaps = [
            self.trimmed - cursor.at for cursor in cursors.values() if cursor and cursor.known
        ]
        missed: int | None = max([0, *known_gaps])
        if not missed and any(cursor and self._is_lost(cursor) for cursor in cursors.values()):
            missed = None
        # Those who never listened stand at the beginning, and miss nothing of what was before them.
        first = min((one or Cursor(0, known=True) for one in cursors.values()), key=lambda c: c.at)
        numbers: list[int] = []
        to = None
        for at in range(max(first.at, self.trimmed), len(self.log)):
            reader = cursors.get(self.log[at].topic if topics else None)
            heard = reader is not None and at < reader.at
            if self._fits(at, topics, agent if others else "") and not heard:
                if len(numbers) == limit:
                    break
                numbers.append(at)
            to = at
        # A cursor is made even if all messages were trimmed.
        if to is None and (missed != 0 or None in cursors.values()):
            to = len(self.log) - 1
        # At the end of the channel its own counters tell where one stands.
        known = first.known or self._is_lost(first) or to == len(self.log) - 1
        return Heard(missed, numbers, to, known)

    def _advance(self, agent: str, topics: tuple[str, ...], to: int | None, *, known: bool) -> None:
        for topic in topics or (None,):
            cursor = self.cursors.get((agent, topic))
            if to is not None and (cursor is None or to + 1 > cursor.at):
                self.cursors[agent, topic] = Cursor(to + 1, known)

    def _is_lost(self, cursor: Cursor) -> bool:
        """Tell whether an unknown number of the messages past a cursor may have been trimmed."""
        return not cursor.known and cursor.at <= self.trimmed and cursor.at < len(self.log)

    def _compare(self, found: list[Any], wanted: Heard, *, whole: bool = True) -> None:
        gaps = [one for one in found if one.event == "gap"]
        missed = wanted.missed != 0
        if missed and found:
            assert found[0] is gaps[0]
            assert gaps[0].details == {"missed": str(wanted.missed or "")}
        assert len(gaps) == (missed and bool(found))
        told = [Said(one.id, one.agent_id, one.topic, one.text) for one in found[len(gaps) :]]
        messages = [self.log[number] for number in wanted.numbers]
        assert told == (messages if whole else messages[: len(told)])
        if whole:
            assert len(gaps) == missed

    # -- what always holds --

    @invariant()
    def every_cursor_stands_where_the_model_has_it_and_never_went_back(self) -> None:
        everywhere = [(agent, topic) for agent in AGENTS for topic in (None, *TOPICS)]
        stand = self.ask("MGET", *(self.keys.cursor(*where) for where in everywhere))
        for where, found in zip(everywhere, stand, strict=True):
            cursor = self.cursors.get(where)
            assert (found and found.decode()) == (cursor and self.log[cursor.at - 1].id)
            if found:
                assert position(found.decode()) >= position(self._before.get(where, "0-0"))
                self._before[where] = found.decode()

    @invariant()
    def who_is_there_has_so_much_unheard(self) -> None:
        for one in self.bus().agents():
            cursor = self.cursors.get((one.agent_id, None))
            unheard = len(self.log) - cursor.at if cursor and not self._is_lost(cursor) else None
            assert one.unheard == unheard
