"""Ten agents that talk, what they suffer, and how far each of them may go."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentbus.core.stream import position
from tests.torture.history import OK, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import CUT, FREEZE, KILL, LOST_REPLY, SERVER_KILL, Fault, Steps
from tests.torture.server import DisposableServer
from tests.torture.talk import agent
from tests.torture.talk.checks import CHECKS
from tests.torture.talk.evidence import Spoken, TalkCollector, TalkEvidence
from tests.torture.workload import Workload

_HOST = "judge"
# Every fourth agent uses the asynchronous bus.
_ASYNCHRONOUS_EVERY = 4
# How far the talk may be ahead of the faults, as a share of all messages.
_AHEAD = 0.05
# The server trims a stream by whole nodes, of a hundred entries.
_NODES = 250
# Some messages are refused, or have an unknown outcome.
_ROOM = 1.5
# A listener is frozen until the channel was trimmed past its cursor.
OVERTAKE = "overtake"
# The share of the time in which agents speak.
_TALKING = 0.8
# Faults that a wrong implementation is sure to show itself by.
_CONTROL = {
    KILL: 2,
    FREEZE: 1,
    LOST_REPLY: 5,
    CUT: 2,
    SERVER_KILL: 1,
}
_LEAST_BOUND = 300


class TalkPlan(NamedTuple):
    """How many messages each agent says within `seconds`, on a channel of `bound` entries.

    The replies that get lost are those to requests that hold `loses`, if it is not empty.
    """

    agents: int
    messages: int
    bound: int
    seconds: float
    faults: dict[str, int]
    loses: bytes = b""

    @property
    def gap(self) -> float:
        """Seconds from one fault to the next."""
        return self.seconds / max(1, sum(self.faults.values()))


def planned(trial: Trial) -> TalkPlan:
    """Return the plan for a trial."""
    if trial.control is not None:
        # Of a few lost replies all might be to agents that overhear: only those to speak are lost.
        return TalkPlan(5, 150, _LEAST_BOUND, 4.0, _CONTROL, loses=b"XADD")
    messages = trial.number(1000, 50)
    faults = trial.faults({FREEZE: 5.0})
    faults |= {KILL: trial.number(10.0, 3), OVERTAKE: trial.number(1, 0)}
    # Small enough to overtake a frozen agent, and large enough not to overtake others all the time.
    bound = min(2000, max(_LEAST_BOUND, messages // 2))
    return TalkPlan(10, messages, bound, trial.minutes * 60 * _TALKING, faults)


class Talk(Workload):
    """Agents that speak, overhear and take notes."""

    mode, checks = "talk", CHECKS

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.plan = planned(trial)
        self.collector = TalkCollector()
        # Millions of lines are kept in a smaller shape.
        self.reader.keeps = False
        self._listening: set[str] = set()
        self._spoken: set[str] = set()
        self._talk_began = 0.0
        self._acknowledged = 0
        # Who was overtaken, whose gap has still to be reported: one at a time.
        self._overtaken: set[str] = set()

    def evidence(self) -> TalkEvidence:
        text = agent.text_of(_HOST, 0)
        with self.connect() as bus:
            said = bus.speak(text)
        self.collector.said[text] = Spoken(_HOST, 0, None, OK, position(said.id))
        for number in range(self.plan.agents):
            kind = agent.ASYNCHRONOUS if number % _ASYNCHRONOUS_EVERY == 1 else agent.BLOCKING
            self.start(
                *(f"agent-{number}", agent, self.trial.control or kind),
                number=number,
                messages=self.plan.messages,
                bound=self.plan.bound,
            )
        # An agent that has never overheard learns nothing of what was trimmed before.
        self.step("agents start", lambda: len(self._listening) == self.plan.agents)
        self._talk_began = time.monotonic()
        nemesis = self.new_nemesis(self.plan.faults, self.plan.gap)
        self.step("agents talk", self._over, nemesis)
        return self.collector.evidence()

    def figures(self, evidence: TalkEvidence) -> dict[str, Any]:
        return {**evidence.figures(), "deaths": self.deaths, "bound": self.plan.bound}

    def saw(self, entry: HistoryEntry) -> None:
        self.collector.saw(entry)
        if entry.op == agent.SPEAK:
            self._acknowledged += entry.phase == OK
        elif entry.op == agent.SPOKEN:
            self._spoken.add(entry.who)
        elif entry.op == agent.SURE and entry.of["r"] is None:
            self._listening.add(entry.who)
        elif entry.op == agent.GAP:
            self._overtaken.discard(entry.who)

    def pace(self) -> None:
        if self.limit[1]:
            return
        nemesis = self.nemesis
        elapsed = (time.monotonic() - self._talk_began) / self.plan.seconds
        share = min(1.0, elapsed, (nemesis.done + 1) / (nemesis.total + 1) + _AHEAD)
        share = min(share, 1.0 - self.kept_back / self.plan.messages)
        self.allow(int(share * self.plan.messages))

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        found: dict[str, Fault] = {OVERTAKE: self._overtake}
        if loses := self.plan.loses:
            found[LOST_REPLY] = lambda: self.nemesis.lose_reply_to(loses)
        return found

    @property
    def kept_back(self) -> float:
        """How many messages each agent must keep back, for the others to overtake all that are left."""
        others = len(self.clients) - 1
        return self.nemesis.left(OVERTAKE) * _ROOM * (self.plan.bound + _NODES) / others

    def _overtake(self) -> Steps:
        """Stop an agent until its cursor lies before the oldest entry, and it has heard of its gap."""
        one = self.nemesis.victim()
        if one is None or self._overtaken:
            return
        self._overtaken.add(one.name)
        wakes_at = self._acknowledged + self.plan.bound + _NODES
        go_on = one.freeze()
        try:
            while self._acknowledged < wakes_at:
                yield False
        finally:
            go_on()
        while one.name in self._overtaken:
            yield False
        yield True

    def _over(self) -> bool:
        if len(self._spoken) == self.plan.agents:
            self.allow(self.plan.messages, over=True)
        return self.finished


torture = Talk.torture
