"""Rounds of contenders for a flag, and what came of them."""

from __future__ import annotations

import collections
from typing import Any

from agentbus.torture.flags import contender
from agentbus.torture.flags.checks import CHECKS
from agentbus.torture.flags.evidence import (
    ANNOUNCE,
    AWAIT,
    READY,
    RELEASE,
    ROUND,
    SATISFY,
    WRITE,
    FlagEvidence,
    paired,
)
from agentbus.torture.flags.nemesis import FlagNemesis
from agentbus.torture.flags.plan import flag_of, planned
from agentbus.torture.history import FAIL, OK, UNKNOWN, HistoryEntry
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import CLOCK
from agentbus.torture.server import DisposableServer
from agentbus.torture.workload import Workload

# A round is over when this share of contenders has done its part: the others are frozen, cut off or dead.
_QUORUM = 0.75


class Rounds(Workload):
    """Contenders, and the round that is on: the limit's number."""

    mode, checks = "flags", CHECKS

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.plan = plan = planned(trial)
        self._ready: set[str] = set()
        self._satisfied: set[str] = set()
        self._parts: dict[int, set[str]] = collections.defaultdict(set)
        wanted = self.possible(plan.faults)
        self.nemesis = FlagNemesis(
            *(plan.share, wanted, plan.gap, trial.seed, self.clients, server)
        )

    def evidence(self) -> FlagEvidence:
        patience = self.plan.patience
        for number in range(self.plan.contenders):
            client = self.hire(
                f"agent-{number:02}",
                lambda client: self.assign(
                    client, contender.__name__, self.plan.kind, patience=patience
                ),
            )
            client.proxies[0].delay = self.plan.delay
        in_time = self.suffer(self.nemesis, lambda: self.finished, self.plan.limit)
        acts, strange = paired(self.reader.entries)
        if not in_time:
            strange.append(f"it was not over within {self.plan.limit:g} s")
        self.problems["confused"] = strange
        kept: dict[str, int | None] = {}
        # Controls keep flags in their own way.
        if not self.plan.kind:
            with self.connect() as bus:
                tokens = {x.flag: x.token for x in bus.flags() if x.state == "satisfied"}
            kept = {act.flag: tokens.get(act.flag) for act in acts if act.op == ANNOUNCE}
        return FlagEvidence(acts, kept, self.plan.bound, bool(self.wanted.get(CLOCK)))

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == READY:
            self._ready.add(entry.who)
        elif entry.op == SATISFY and entry.phase == OK:
            self._satisfied.add(entry.of["flag"])
        elif entry.op == ROUND:
            self._parts[entry.of["k"]].add(entry.who)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next round when this one is over; after the last, end once all faults are done."""
        number, over = self.limit
        if number == 0:
            if len(self._ready) == self.plan.contenders:
                self.allow(1)
        elif (
            not over
            and len(self._parts[number]) >= self.plan.contenders * _QUORUM
            and flag_of(number) in self._satisfied
        ):
            self._satisfied.discard(flag_of(number))
            more = number < self.plan.rounds or not self.nemesis.finished
            self.allow(number + 1 if more else number, over=not more)

    def figures(self, evidence: FlagEvidence) -> dict[str, Any]:
        counts = collections.Counter((act.op, act.phase) for act in evidence.acts)
        reasons = collections.Counter(
            (act.op, act.told.get("error")) for act in evidence.acts if act.phase == FAIL
        )
        parts = sum(map(len, self._parts.values()))
        return {
            "rounds": len(self._parts),
            "contenders": len(self.clients),
            "took part": round(parts / max(1, len(self._parts)), 1),
            "deaths": self.deaths,
            "holders hit": self.nemesis.holders_hit,
            "holds": counts[ANNOUNCE, OK],
            "refused": reasons[ANNOUNCE, "FlagHeld"],
            "unknown": sum(n for (_, phase), n in counts.items() if phase == UNKNOWN),
            "stale ends refused": reasons[SATISFY, "NotHolder"] + reasons[RELEASE, "NotHolder"],
            "writes": counts[WRITE, OK],
            "stale writes refused": counts[WRITE, FAIL],
            "awaits": counts[AWAIT, OK],
            "await timeouts": reasons[AWAIT, "TimedOut"],
        }


torture = Rounds.torture
