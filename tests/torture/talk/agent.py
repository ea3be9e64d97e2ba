"""The process of an agent: speaks its messages, overhears all, takes notes, and writes a history."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Generator
from typing import Any

import agentbus
import agentbus.aio
from agentbus.coordination.message import Message
from agentbus.core.errors import BackendUnavailable, NoteExists, NotFound, OutcomeUnknown
from agentbus.core.keys import Keys
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import OK, UNKNOWN
from tests.torture.plain import library_errors, plain_client
from tests.torture.talk.controls import CONTROLS

# Operations: the begin of a process, a message, what was overheard, a gap that was reported, the cursor
# after an overhear that ended well, an overhear that failed.
LIFE, SPEAK, HEARD, GAP, SURE, TORN = "life", "speak", "heard", "gap", "sure", "torn"
JOT, CLAIM, RECALL, SPOKEN = "jot", "claim", "recall", "spoken"
TROUBLE = (BackendUnavailable, OutcomeUnknown)
BLOCKING, ASYNCHRONOUS = "blocking", "asynchronous"
TOPICS = ("build", "tests", "a%b:c")
NOTES = ("how", "why", "who:%")

# In seconds: long enough for most outages, and short enough that the outcome of some operations is unknown.
_DEADLINE = 2.5
_AT_ONCE = 10
_PAGE = 150
_WAIT = 0.25
_LEAVES = 0.03
_NOTES = 0.04
_CLAIMS_EVERY = 250
_INVOKED = re.compile(rb'"speak","invoke",\{"n":(\d+)')


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


class TalkAgent:
    """One process of an agent."""

    def __init__(self, assignment: Assignment, limit: Allowance) -> None:
        written = assignment.history.read_bytes() if assignment.history.exists() else b""
        found, lives = _INVOKED.findall(written), written.count(b'"life","ok"')
        # The number after the last that any process of this agent invoked.
        self._next = int(found[-1]) + 1 if found else 0
        self._name, self._limit = assignment.name, limit
        self._messages: int = assignment.options["messages"]
        self._topics = topics_of(assignment.options["number"])
        self._scribe = assignment.scribe()
        self._chance = random.Random(f"{assignment.seed} {self._name} {lives}")
        self._bus = bus_of(assignment)
        # Whether the cursor stays when an overhear is left in the middle of a page.
        self._knows_leaving = assignment.kind != ASYNCHRONOUS
        self._keys, self._raw = (
            Keys(assignment.project),
            plain_client(assignment.url, decode_responses=True),
        )
        # Topics whose last overhear failed: only the server knows where it will go on.
        self._torn: set[str | None] = set()
        self._scribe.note(LIFE, OK)

    def live(self) -> None:
        """Speak and overhear until all is said, and nothing more is to be heard."""
        told = False
        while True:
            new = sum(self._hear(topic, 0.0) for topic in self._topics)
            over = self._limit.over
            end = min(self._limit.number, self._messages, self._next + _AT_ONCE)
            if self._next < end and self._speak(end):
                continue
            if self._next == self._messages and not told:
                self._scribe.note(SPOKEN, OK)
                told = True
            if over and told and not any(self._hear(topic, 0.0, 0.0) for topic in self._topics):
                return
            if not new:
                self._hear(None, _WAIT)

    def _speak(self, end: int) -> bool:
        """Speak the next messages; False as soon as one is refused, which is then repeated."""
        while self._next < end:
            number = self._next
            said, topic = text_of(self._name, number), topic_of(number)
            try:
                with (
                    # It may have been said: repeated, it could be there twice.
                    contextlib.suppress(OutcomeUnknown),
                    self._scribe.asking(SPEAK, n=number, t=said, o=topic) as answer,
                ):
                    answer["i"] = self._bus.speak(said, topic=topic).id
            except BackendUnavailable:
                return False
            self._next += 1
            if self._chance.random() < _NOTES:
                self._take_note(number)
            if number % _CLAIMS_EVERY == 0:
                self._write(CLAIM, f"first-{number}", if_absent=True)
        return True

    def _hear(self, topic: str | None, wait: float, leaves: float = _LEAVES) -> int:
        """Overhear what is new, and return how much; -1 if it failed."""
        number, leaves_at, left = 0, _PAGE, False
        if self._chance.random() < leaves:
            leaves_at = self._chance.randrange(20)
        try:
            follow = {"follow": True, "timeout": wait} if wait else {}
            source = self._bus.overhear(topic, limit=_PAGE, **follow)
            for message in source:
                if number == leaves_at:
                    # The message in hand does not count as heard.
                    left = True
                    break
                number += 1
                if message.event == GAP:
                    missed = int((message.details or {})["missed"])
                    self._scribe.note(GAP, OK, r=topic, m=missed)
                    continue
                self._scribe.note(
                    *(HEARD, OK),
                    r=topic,
                    i=message.id,
                    a=message.agent_id,
                    t=message.text,
                    o=message.topic,
                    e=message.event,
                )
            source.close()
            if number or topic in self._torn:
                cursor = self._cursor(topic)
                if left and not self._knows_leaving:
                    self._scribe.note(TORN, UNKNOWN, r=topic)
                self._scribe.note(SURE, OK, r=topic, c=cursor)
                self._torn.discard(topic)
        except TROUBLE:
            self._torn.add(topic)
            self._scribe.note(TORN, UNKNOWN, r=topic)
            return -1
        return number

    def _cursor(self, topic: str | None) -> str:
        with library_errors():
            found: Any = self._raw.get(self._keys.cursor(self._name, topic))
        return str(found or "0-0")

    def _take_note(self, number: int) -> None:
        key = self._chance.choice(NOTES)
        if self._chance.random() < 0.5:
            self._write(JOT, key, if_absent=False, number=number)
            return
        if self._chance.random() < 0.2:
            key = f"first-{number // _CLAIMS_EVERY * _CLAIMS_EVERY}"
        with contextlib.suppress(*TROUBLE), self._scribe.asking(RECALL, k=key) as answer:
            try:
                answer["v"] = self._bus.recall(key).value or ""
            except NotFound:
                answer["v"] = None

    def _write(self, op: str, key: str, *, if_absent: bool, number: int = 0) -> None:
        value = f"{self._name} {number} {self._chance.random()}"
        with (
            contextlib.suppress(NoteExists, *TROUBLE),
            self._scribe.asking(op, k=key, v=value),
        ):
            self._bus.jot(key, value, if_absent=if_absent)


def topics_of(number: int) -> tuple[str | None, ...]:
    """Return what an agent overhears, with a cursor each: everything (None), and for some a topic."""
    return (TOPICS[number // 3 % len(TOPICS)], None) if number % 3 == 0 else (None,)


def text_of(name: str, number: int) -> str:
    """Return the text of an agent's message."""
    return f"{name} says {number}: ä\n{'x' * (number % 40)}"


def topic_of(number: int) -> str | None:
    """Return the topic of an agent's message."""
    return TOPICS[number % 7] if number % 7 < len(TOPICS) else None


def bus_of(assignment: Assignment) -> Any:
    """Return the bus of an agent of this kind, or a control in its place."""
    asynchronous = assignment.kind == ASYNCHRONOUS
    bus = (agentbus.aio if asynchronous else agentbus).connect(
        assignment.url, project=assignment.project, agent=assignment.name, deadline=_DEADLINE
    )
    bus.scope.channel_bound = assignment.options["bound"]
    if assignment.kind in CONTROLS:
        return CONTROLS[assignment.kind](bus, assignment)
    return AsynchronousTalk(bus) if asynchronous else bus


def main(assignment: Assignment, limit: Allowance) -> None:
    """Talk until all is said and heard."""
    TalkAgent(assignment, limit).live()
