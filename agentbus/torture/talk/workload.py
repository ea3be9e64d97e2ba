"""Ten agents that talk, and how far each of them may go."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from agentbus.core.stream import position
from agentbus.torture.history import OK, HistoryEntry
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.server import DisposableServer
from agentbus.torture.talk import agent
from agentbus.torture.talk.checks import CHECKS
from agentbus.torture.talk.clients import ASYNCHRONOUS, BLOCKING
from agentbus.torture.talk.evidence import Spoken, TalkCollector, TalkEvidence
from agentbus.torture.talk.nemesis import TalkNemesis
from agentbus.torture.talk.plan import planned
from agentbus.torture.workload import Workload

_HOST = "judge"
# Every fourth agent uses the asynchronous bus.
_ASYNCHRONOUS_EVERY = 4
# How far the talk may be ahead of the faults, as a share of all messages.
_AHEAD = 0.05


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

    def evidence(self) -> TalkEvidence:
        text = agent.text_of(_HOST, 0)
        with self.connect() as bus:
            said = bus.speak(text)
        self.collector.said[text] = Spoken(_HOST, 0, None, OK, position(said.id))
        for number in range(self.plan.agents):
            self.hire(f"agent-{number}", partial(self._words, number))
        # An agent that has never overheard learns nothing of what was trimmed before.
        self.quietly(lambda: len(self._listening) == self.plan.agents, self.plan.deadline)
        nemesis = TalkNemesis(
            self.plan,
            self.possible(self.plan.faults),
            self.trial.seed,
            self.clients,
            self.server,
        )
        self._talk_began = time.monotonic()
        if not self.suffer(nemesis, self._over, self.plan.deadline):
            late = [client.name for client in self.clients if client.alive]
            self.problems["never_caught_up"] = late
        return self.collector.evidence()

    def figures(self, evidence: TalkEvidence) -> dict[str, Any]:
        return {**evidence.figures(), "deaths": self.deaths, "bound": self.plan.bound}

    def saw(self, entry: HistoryEntry) -> None:
        self.collector.saw(entry)
        if entry.op == agent.SPOKEN:
            self._spoken.add(entry.who)
        elif entry.op == agent.SURE and entry.of["r"] is None:
            self._listening.add(entry.who)

    def pace(self, nemesis: Nemesis) -> None:
        if not isinstance(nemesis, TalkNemesis) or self.limit[1]:
            return
        elapsed = (time.monotonic() - self._talk_began) / self.plan.seconds
        share = min(1.0, elapsed, (nemesis.done + 1) / (nemesis.total + 1) + _AHEAD)
        share = min(share, 1.0 - nemesis.needs / self.plan.messages)
        self.allow(int(share * self.plan.messages))

    def _over(self) -> bool:
        if len(self._spoken) == self.plan.agents:
            self.allow(self.plan.messages, over=True)
        return self.finished

    def _words(self, number: int, client: Client) -> list[str]:
        kind = ASYNCHRONOUS if number % _ASYNCHRONOUS_EVERY == 1 else BLOCKING
        return self.assign(
            *(client, agent.__name__, self.trial.control or kind),
            number=number,
            messages=self.plan.messages,
            bound=self.plan.bound,
        )


torture = Talk.torture
