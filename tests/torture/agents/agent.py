"""The process of an agent: sends, reads and answers messages, leases paths, and writes a history."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import time
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Any

import agentbus
import agentbus.aio
from agentbus.coordination import tell
from agentbus.coordination.hold import Leasing
from agentbus.core.errors import (
    BackendUnavailable,
    InboxFull,
    LeaseHeld,
    NotFound,
    NotHolder,
    OutcomeUnknown,
    TimedOut,
)
from agentbus.core.keys import Keys
from agentbus.core.settings import repository
from tests.torture.agents.command import CommandReader
from tests.torture.agents.controls import CONTROLS
from tests.torture.agents.past import Past
from tests.torture.agents.plan import LONG_TTL, SHORT_TTLS, patterns, text_of
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import FAIL, OK, UNKNOWN
from tests.torture.plain import library_errors, plain_client

# Operations: a process begins, a message, one that was read, a reading that failed, what counts as read; an
# answer, a receipt; what is done with leases, which are given with a message; and how far the agent is.
LIFE, TELL, HEARD, TORN, LOOK = "life", "tell", "heard", "torn", "look"
REPLY, RECEIPT = "reply", "receipt"
LEASE, RENEW, GIVE, DROP = "lease", "renew", "give", "drop"
READY, SENT, ANSWERED = "ready", "sent", "answered"
TROUBLE = (BackendUnavailable, OutcomeUnknown)
BLOCKING, ASYNCHRONOUS, COMMAND = "blocking", "asynchronous", "command"

_DEADLINE = 2.5
_WAIT = 0.25
_ASKS, _URGENT, _LONG, _TWICE = 0.3, 0.25, 0.03, 0.3
_LOOKS, _LEASES = 0.4, 0.4
# One agent reads seldom, and many messages are for it, so that its inbox is full now and then.
_SELDOM, _FOR_IT = 0.04, 0.3
# A server that is full refuses at once.
_BREATH = 0.05


class BusyAgent:
    """One process of an agent."""

    def __init__(self, assignment: Assignment, limit: Allowance) -> None:
        self._name, self._limit = assignment.name, limit
        self._options = assignment.options
        self._others: list[str] = [
            one for one in assignment.options["names"] if one != assignment.name
        ]
        self._messages: int = assignment.options["messages"]
        self._scribe = assignment.scribe()
        self._past = Past(assignment.history)
        self._chance = random.Random(f"{assignment.seed} {self._name} {self._past.lives}")
        self._attempt = 0
        self._runner = asyncio.Runner() if assignment.kind == ASYNCHRONOUS else None
        self._bus: Any = (agentbus.aio if self._runner else agentbus).connect(
            assignment.url, project=assignment.project, agent=self._name, deadline=_DEADLINE
        )
        self._bus.scope.exchange_limit = 0
        tell.MOST_UNREAD = assignment.options["bound"]  # type: ignore[attr-defined]
        self._keys = Keys(assignment.project)
        self._raw: Any = plain_client(assignment.url, decode_responses=True)
        self._command = None
        if assignment.kind == COMMAND:
            self._command = CommandReader(assignment, self._scribe, self._past, self._chance)
        # How often the answer to an ask that was read was refused.
        self._unanswered: dict[str, int] = dict.fromkeys(self._past.unanswered, 0)
        # Patterns of leases that others have given to this agent.
        self._given: dict[str, None] = {}
        self._root = repository()[0] or os.getcwd()
        self._scribe.note(LIFE, OK)

    def live(self) -> None:
        """Send, read, answer and lease until all is sent, and nothing more is to be read."""
        if self._past.leased and (self._past.long or self._chance.random() < 0.5):
            # Otherwise they end by themselves.
            self._insist_on_dropping()
        ready = answered = False
        while True:
            quiet = self._read()
            self._answer()
            self._drop_given()
            ready = ready or self._step(READY, quiet is not None)
            if self._past.next < min(self._limit.number, self._messages):
                self._send()
                self._look_after()
                if self._chance.random() < _LEASES:
                    self._edit()
                continue
            if self._past.next == self._messages and not self._past.sent:
                self._past.sent = self._step(SENT, True)
            done = quiet == 0 and not self._unanswered
            if self._limit.number > self._messages and not answered:
                answered = self._step(ANSWERED, done)
            if self._limit.over and done and self._past.sent:
                self._end()
                return
            time.sleep(_BREATH)

    def _step(self, op: str, reached: bool) -> bool:
        if reached:
            self._scribe.note(op, OK)
        return reached

    def _end(self) -> None:
        self._insist_on_dropping()
        for known in self._past.told:
            while not self._claim(known):
                pass

    def _do(self, outcome: Any) -> Any:
        """Return what an operation returns, on either bus."""
        if not self._runner or not inspect.isawaitable(outcome):
            return outcome

        async def done(what: Awaitable[Any]) -> Any:
            return await what

        return self._runner.run(done(outcome))

    # -- messages --

    def _send(self) -> None:
        """Send the next message; one that is refused is sent again later, with another text."""
        to = self._chance.choice(self._others)
        if self._options["seldom"] in self._others and self._chance.random() < _FOR_IT:
            to = self._options["seldom"]
        ask, urgent = self._chance.random() < _ASKS, self._chance.random() < _URGENT
        number, self._attempt = self._past.next, self._attempt + 1
        said = text_of(self._name, number, self._attempt, long=self._chance.random() < _LONG)
        said += "?" if ask else ""
        try:
            with self._scribe.asking(TELL, n=number, t=said, to=to) as answer:
                sent = self._do(self._bus.tell(to, said, urgent=urgent))
                answer |= {"i": sent.id, "u": sent.unread}
                self._past.told.append(sent.id)
        except (InboxFull, BackendUnavailable):
            time.sleep(_BREATH)
            if self._attempt < self._options["attempts"]:
                return
        except OutcomeUnknown:
            # Sent again, it could be there twice.
            pass
        self._past.next, self._attempt = number + 1, 0

    def _read(self) -> int | None:
        """Read what is unread, and return how much that was; None if it failed, 0 if nothing is left."""
        if (
            self._name == self._options["seldom"]
            and 0 < self._limit.number <= self._messages
            and self._past.next < self._messages
            and self._chance.random() >= _SELDOM
        ):
            return 1
        try:
            found = self._command.read(self._received) if self._command else self._read_page()
            self._look()
        except TROUBLE:
            self._scribe.note(TORN, UNKNOWN)
            time.sleep(_BREATH)
            return None
        return found

    def _read_page(self) -> int:
        leaves_at = page = self._chance.choice(self._options["pages"])
        number = 0
        if self._chance.random() < self._options["leaves"]:
            leaves_at = self._chance.randrange(5)
        with contextlib.closing(self._each(self._bus.inbox(limit=page))) as messages:
            for message in messages:
                number += 1
                if number > leaves_at:
                    # The message in hand does not count as read.
                    break
                of = {"i": message.id, "a": message.agent_id, "t": message.text}
                self._scribe.note(HEARD, OK, **of, g=message.gives)
                self._received(message.id, message.ask, message.gives)
        return number

    def _received(self, known: str, ask: bool, gives: Sequence[str]) -> None:
        """Remember what is to be done for a message."""
        self._given |= dict.fromkeys(gives)
        if ask:
            self._unanswered.setdefault(known, 0)

    def _each(self, source: Any) -> Generator[Any, None, None]:
        if self._runner is None:
            yield from source
            return

        async def following() -> Any:
            return await anext(source, None)

        try:
            while (message := self._runner.run(following())) is not None:
                yield message
        finally:
            self._runner.run(source.aclose())

    def _look(self) -> None:
        """Note what counts as read on the server."""
        with library_errors():
            found: dict[str, str] = self._raw.hgetall(self._keys.inbox_at(self._name))
        beyond = [name for name in found if name[:1].isdigit()]
        self._scribe.note(LOOK, OK, h=found.get("heard", "0-0"), m=beyond)

    def _answer(self) -> None:
        """Answer what was asked, now and then twice."""
        for known in [*self._unanswered]:
            try:
                with self._scribe.asking(REPLY, i=known) as answer:
                    sent = self._do(self._bus.reply(known, f"{self._name} answers {known}"))
                    answer |= {"a": sent.id, "r": sent.repeated}
            except (InboxFull, *TROUBLE):
                self._unanswered[known] += self._limit.number > self._messages
                if self._unanswered[known] > self._options["attempts"]:
                    del self._unanswered[known]
                # Its sender has to read first, and may wait for this agent to do so.
                return
            except NotFound:
                del self._unanswered[known]
                continue
            if self._chance.random() >= _TWICE:
                del self._unanswered[known]

    def _look_after(self) -> None:
        """Ask how far a message of this agent's got."""
        if self._past.told and self._chance.random() < _LOOKS:
            recent = self._past.told[-10:]
            self._claim(self._chance.choice(recent), self._chance.choice((None, None, _WAIT)))

    def _claim(self, known: str, wait: float | None = None) -> bool:
        until = self._chance.choice(("read", "answer"))
        try:
            with self._scribe.asking(RECEIPT, i=known) as answer:
                found = self._do(self._bus.receipts(known, wait=wait, until=until))
                answer |= {"s": found.state, "a": found.answered}
        except (NotFound, TimedOut):
            pass
        except TROUBLE:
            return False
        return True

    # -- leases --

    def _edit(self) -> None:
        """Lease paths, and give them up, now and then by their end alone."""
        with contextlib.suppress(NotHolder, *TROUBLE):
            began = time.monotonic_ns()
            lease, of = self._lease()
            if lease is None:
                return
            time.sleep(self._chance.uniform(0.0, 0.04))
            if self._chance.random() < self._options["gives"]:
                if self._give({**of, "b": began}):
                    return
            elif self._chance.random() < 0.2:
                ttl = self._chance.choice(SHORT_TTLS)
                with self._scribe.asking(RENEW, **{**of, "ttl": ttl}):
                    self._do(lease.renew(ttl))
            if self._chance.random() < self._options["forgets"] and of["ttl"] != LONG_TTL:
                return
            with self._scribe.asking(DROP, **of):
                self._do(lease.drop())

    def _lease(self) -> tuple[Leasing[Any] | None, dict[str, Any]]:
        asked = patterns(self._chance, os.getcwd())
        ttl = self._chance.choice((*SHORT_TTLS, LONG_TTL, LONG_TTL))
        wait = self._chance.choice((None, None, _WAIT))
        lease = None
        with self._scribe.asking(LEASE, p=[*asked.values()], ttl=ttl) as answer:
            try:
                lease = self._do(self._bus.lease(*asked, ttl=ttl, wait=wait))
            except LeaseHeld as held:
                answer |= {"phase": FAIL, "by": held.agent, "of": held.pattern, "path": held.path}
            else:
                # By pattern: the token, and whether it was renewed.
                taken = {one.pattern: str(one.token) for one in lease.leases}
                answer |= {"g": taken, "r": list(lease.renewed)}
        return lease, {"g": {} if lease is None else taken, "ttl": ttl}

    def _give(self, of: dict[str, Any]) -> bool:
        """Give leases to another agent, and return whether that has certainly happened."""
        to, said = self._chance.choice(self._others), f"{self._name} gives {time.monotonic_ns()}"
        with (
            contextlib.suppress(InboxFull, LeaseHeld, NotFound, NotHolder, *TROUBLE),
            self._scribe.asking(GIVE, t=said, to=to, **of) as answer,
        ):
            sent = self._do(self._bus.tell(to, said, give=self._paths(of["g"])))
            answer |= {"i": sent.id, "u": sent.unread}
            self._past.told.append(sent.id)
            return True
        return False

    def _drop_given(self) -> None:
        """Drop what others have given to this agent; some of it may be over."""
        if self._given:
            with (
                contextlib.suppress(NotFound, NotHolder, *TROUBLE),
                self._scribe.asking(DROP, g=dict.fromkeys(self._given, "")),
            ):
                self._do(self._bus.drop_leases(*self._paths(self._given)))
            self._given.clear()

    def _paths(self, patterns: Iterable[str]) -> list[str]:
        return [f"{self._root}/{pattern}" for pattern in patterns]

    def _insist_on_dropping(self) -> None:
        while True:
            with contextlib.suppress(*TROUBLE):
                with self._scribe.asking(DROP, g=None):
                    self._do(self._bus.drop_leases())
                return


def main(assignment: Assignment, limit: Allowance) -> None:
    """Work until all is sent, read and answered."""
    # Paths are relative to it, and no repository of the user's matters.
    os.chdir(assignment.place)
    agent = BusyAgent(assignment, limit)
    # The command has it instead.
    control = CONTROLS.get(assignment.options["control"])
    if control and not assignment.options["by_command"]:
        control()
    agent.live()
