"""One agent's process: says its share, hears all, takes notes, and writes down what came of it."""

from __future__ import annotations

import os
import random
import re
import sys

from agentbus.core.errors import BackendUnavailable, NoteExists, NotFound, OutcomeUnknown
from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Scribe
from agentbus.torture.parent import end_with_parent
from agentbus.torture.talk.role import NOTES, Role, text_of, topic_of
from agentbus.torture.talk.voices import Voice, voice_of

# What is written down: a life's begin, a listening that ended well or not, what was heard.
LIFE, SPEAK, HEARD, GAP, SURE, TORN = "life", "speak", "heard", "gap", "sure", "torn"
JOT, CLAIM, RECALL, SPOKEN = "jot", "claim", "recall", "spoken"
TROUBLE = (BackendUnavailable, OutcomeUnknown)

_AT_ONCE = 10
_PAGE = 150
_WAIT = 0.25
_LEAVES = 0.03
_NOTES = 0.04
_CLAIMS_EVERY = 250
_INVOKED = re.compile(rb'"speak","invoke",\{"n":(\d+)')


class Agent:
    """One life of an agent."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._next, lives = _before(role)
        self._scribe = Scribe(role.history)
        self._chance = random.Random(f"{role.seed} {role.name} {lives}")  # noqa: S311
        self._gate = os.open(role.gate, os.O_RDONLY | os.O_CLOEXEC)
        self._voice: Voice = voice_of(role)
        # Where a listening was torn: from where one will hear on is known only when it is asked.
        self._torn: set[str | None] = set()
        self._scribe.note(LIFE, OK)

    def live(self) -> None:
        """Speak and hear until all is said, and nothing more is to be heard."""
        told = False
        while True:
            new = sum(self._hear(topic, 0.0) for topic in self._role.topics)
            allowed, over = map(int, os.pread(self._gate, 32, 0).split())
            end = min(allowed, self._role.messages, self._next + _AT_ONCE)
            if self._next < end and self._speak(end):
                continue
            if self._next == self._role.messages and not told:
                self._scribe.note(SPOKEN, OK)
                told = True
            if over and told and self._heard_all():
                return
            if not new:
                self._hear(None, _WAIT)

    def _heard_all(self) -> bool:
        """Tell whether nobody says anything any more, and nothing is left to be heard."""
        return not any(self._hear(topic, 0.0, leaves=0.0) for topic in self._role.topics)

    def _speak(self, end: int) -> bool:
        """Say what is to be said next, until something is refused; tells whether all was taken."""
        while self._next < end:
            number = self._next
            if not self._say(number):
                return False
            self._next += 1
            if self._chance.random() < _NOTES:
                self._take_note(number)
            if number % _CLAIMS_EVERY == 0:
                self._write(CLAIM, f"first-{number}", if_absent=True)
        return True

    def _say(self, number: int) -> bool:
        """Say one message; tells whether it was taken, or may have been: else it is said again."""
        text, topic = text_of(self._role.name, number), topic_of(number)
        self._scribe.note(SPEAK, INVOKE, n=number, t=text, o=topic)
        try:
            entry = self._voice.speak(text, topic)
        except OutcomeUnknown:
            self._scribe.note(SPEAK, UNKNOWN, n=number)
        except BackendUnavailable:
            self._scribe.note(SPEAK, FAIL, n=number)
            return False
        else:
            self._scribe.note(SPEAK, OK, n=number, i=entry)
        return True

    def _hear(self, topic: str | None, wait: float, leaves: float = _LEAVES) -> int:
        """Hear what is new, and return how much; -1 if there was trouble."""
        number, leaves_at, left = 0, _PAGE, False
        if self._chance.random() < leaves:
            leaves_at = self._chance.randrange(20)
        try:
            source = self._voice.overhear(topic, _PAGE, wait)
            for message in source:
                if number == leaves_at:
                    # The one in hand is not heard.
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
                self._know(topic, left)
                self._torn.discard(topic)
        except TROUBLE:
            self._torn.add(topic)
            self._scribe.note(TORN, UNKNOWN, r=topic)
            return -1
        return number

    def _know(self, topic: str | None, left: bool) -> None:
        """Write down from where one will hear on."""
        cursor = self._voice.cursor(topic)
        if left and not self._voice.tells_leaving:
            self._scribe.note(TORN, UNKNOWN, r=topic)
        self._scribe.note(SURE, OK, r=topic, c=cursor)

    def _take_note(self, number: int) -> None:
        key = self._chance.choice(NOTES)
        if self._chance.random() < 0.5:
            self._write(JOT, key, if_absent=False, number=number)
            return
        if self._chance.random() < 0.2:
            key = f"first-{number // _CLAIMS_EVERY * _CLAIMS_EVERY}"
        self._scribe.note(RECALL, INVOKE, k=key)
        try:
            value = self._voice.recall(key)
        except NotFound:
            self._scribe.note(RECALL, OK, k=key, v=None)
        except TROUBLE:
            self._scribe.note(RECALL, UNKNOWN, k=key)
        else:
            self._scribe.note(RECALL, OK, k=key, v=value)

    def _write(self, op: str, key: str, *, if_absent: bool, number: int = 0) -> None:
        value = f"{self._role.name} {number} {self._chance.random()}"
        self._scribe.note(op, INVOKE, k=key, v=value)
        try:
            self._voice.jot(key, value, if_absent=if_absent)
        except OutcomeUnknown:
            self._scribe.note(op, UNKNOWN, k=key, v=value)
        except (NoteExists, BackendUnavailable):
            self._scribe.note(op, FAIL, k=key, v=value)
        else:
            self._scribe.note(op, OK, k=key, v=value)


def _before(role: Role) -> tuple[int, int]:
    """Return the number after the last that any life of this agent said, and how many lives there were."""
    if not role.history.exists():
        return 0, 0
    written = role.history.read_bytes()
    found = _INVOKED.findall(written)
    return (int(found[-1]) + 1 if found else 0), written.count(b'"life","ok"')


if __name__ == "__main__":
    end_with_parent()
    Agent(Role.of(sys.argv[1])).live()
