"""Agents that write to each other and lease paths, and what they suffer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from agentbus.core.keys import Keys
from agentbus.core.stream import position
from tests.torture.agents import agent
from tests.torture.agents.checks import CHECKS
from tests.torture.agents.evidence import AgentCollector, AgentEvidence, Position
from tests.torture.agents.plan import planned
from tests.torture.history import HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import CLOCK, LOST_REPLY, Fault, Steps
from tests.torture.plain import plain_client
from tests.torture.server import DisposableServer
from tests.torture.workload import Workload

# How far the messages may be ahead of the faults, as a share of all.
_AHEAD = 0.05
# Every fourth agent uses the asynchronous bus, and every fourth reads by the command.
_KINDS = (agent.BLOCKING, agent.ASYNCHRONOUS, agent.BLOCKING, agent.COMMAND)
_ANSWERS_WITHIN = 30.0


class Agents(Workload):
    """Agents with inboxes and leases.

    The limit's number is how many messages each may send, and one more when all are sent.
    """

    mode, checks = "agents", CHECKS

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.plan = planned(trial)
        self.collector = AgentCollector()
        # The collector keeps them in a smaller shape.
        self.reader.keeps = False
        self._reached: dict[str, set[str]] = defaultdict(set)
        self._shifts: list[tuple[int, float]] = []
        self._work_began = 0.0

    def evidence(self) -> AgentEvidence:
        plan = self.plan
        names = [f"agent-{number}" for number in range(plan.agents)]
        for number, name in enumerate(names):
            kind = _KINDS[number % len(_KINDS)]
            if kind == agent.COMMAND and not plan.reads_by_command:
                kind = agent.BLOCKING
            self.start(
                *(name, agent, kind),
                names=names,
                seldom=names[-2],
                control=self.trial.control,
                by_command=plan.reads_by_command,
                kills=plan.kills,
                messages=plan.messages,
                bound=plan.bound,
                attempts=plan.attempts,
                pages=plan.pages,
                leaves=plan.leaves,
                forgets=plan.forgets,
                gives=plan.gives,
            )
        # Nobody can write to an agent that was never there.
        self.step("agents start", lambda: self._have(agent.READY))
        self._work_began = time.monotonic()
        nemesis = self.new_nemesis(plan.faults, plan.gap)
        self.step("agents write to each other", self._over, nemesis)
        self.collector.finish()
        began = time.monotonic_ns()
        with self.connect() as bus:
            left = [(lease.agent, lease.pattern) for lease in bus.leases()]
        found = self.collector
        return AgentEvidence(
            *(found.acts, found.readings, found.looks, self._inboxes(names), plan.bound, left),
            looked=(began, time.monotonic_ns()),
            shifts=self._shifts,
            lives=found.lives,
        )

    def figures(self, evidence: AgentEvidence) -> dict[str, Any]:
        return {**evidence.figures(), "deaths": self.deaths}

    def saw(self, entry: HistoryEntry) -> None:
        self.collector.saw(entry)
        self._reached[entry.op].add(entry.who)

    def pace(self) -> None:
        number, over = self.limit
        if over or number > self.plan.messages:
            return
        nemesis = self.nemesis
        elapsed = (time.monotonic() - self._work_began) / self.plan.seconds
        share = min(1.0, elapsed, (nemesis.done + 1) / (nemesis.total + 1) + _AHEAD)
        self.allow(max(1, int(share * self.plan.messages)))

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        found: dict[str, Fault] = {CLOCK: self._shift}
        if loses := self.plan.loses:
            found[LOST_REPLY] = lambda: self.nemesis.lose_reply_to(loses)
        return found

    def _shift(self) -> Steps:
        """Make the server's clock leap and leap back, and note when."""
        began = time.monotonic_ns()
        happened = False
        try:
            for step in self.nemesis._to_server(self.nemesis.shift):
                happened = happened or step
                yield step
        finally:
            if happened:
                self._shifts.append((began, time.monotonic_ns()))

    # -- the end --

    def _have(self, op: str) -> bool:
        return len(self._reached[op]) == self.plan.agents

    def _over(self) -> bool:
        messages = self.plan.messages
        if self._have(agent.SENT):
            # Nobody asks any more: what was asked is answered, and then read.
            self.allow(messages + 1, over=self._have(agent.ANSWERED))
        return self.finished

    def _inboxes(self, names: list[str]) -> dict[str, dict[Position, dict[str, str]]]:
        keys = Keys(self.project)
        with plain_client(self.url, _ANSWERS_WITHIN, decode_responses=True) as raw:
            found: dict[str, Any] = {name: raw.xrange(keys.inbox(name)) for name in names}
        return {
            name: {position(entry): fields for entry, fields in entries}
            for name, entries in found.items()
        }


torture = Agents.torture
