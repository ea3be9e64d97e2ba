"""Rounds of contenders for a flag, and what came of them."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.torture.flags import contender
from tests.torture.flags.checks import CHECKS
from tests.torture.flags.evidence import (
    ANNOUNCE,
    AWAIT,
    FAILING,
    READY,
    RELEASE,
    ROUND,
    SATISFY,
    WRITE,
    FlagEvidence,
    paired,
)
from tests.torture.flags.plan import LONG, flag_of, planned
from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import CLOCK, FREEZE, KILL, Client, Fault, Steps
from tests.torture.server import DisposableServer
from tests.torture.workload import Workload

# A round is over when this share of contenders has done its part: the others are frozen, cut off or dead.
_QUORUM = 0.75
# If no holder comes within this time, in seconds, any process will do.
_PATIENCE = 8.0


class Rounds(Workload):
    """Contenders, and the round that is on: the limit's number."""

    mode, checks = "flags", CHECKS

    def __init__(self, trial: Trial, server: DisposableServer | None) -> None:
        super().__init__(trial, server)
        self.plan = planned(trial)
        self._ready: set[str] = set()
        self._ended: dict[str, str] = {}
        self._parts: dict[int, set[str]] = collections.defaultdict(set)
        # The holders in a long section, which is not over yet when they are hurt.
        self._sections: dict[str, float] = {}
        self._inside: set[str] = set()
        self.holders_hit = 0

    def evidence(self) -> FlagEvidence:
        plan = self.plan
        for number in range(plan.contenders):
            kind = self.trial.control or ""
            options = {"patience": plan.patience, "fails": plan.fails}
            client = self.start(f"agent-{number:02}", contender, kind, **options)
            client.proxies[0].delay = plan.delay
        self.step("contenders start", lambda: len(self._ready) == plan.contenders)
        self.allow(1)
        nemesis = self.new_nemesis(plan.faults, plan.gap)
        self.step("contenders race", lambda: self.finished, nemesis)
        acts, self.problems["confused"] = paired(self.reader.entries)
        kept: dict[str, int | None] = {}
        failures: dict[str, int | None] = {}
        # Controls keep flags in their own way.
        if self.trial.control is None:
            with self.connect() as bus:
                tokens = {(x.flag, x.state): x.token for x in bus.flags()}
            flags = {act.flag for act in acts if act.op == ANNOUNCE}
            kept = {flag: tokens.get((flag, "satisfied")) for flag in flags}
            failures = {flag: tokens.get((flag, "failed")) for flag in flags}
        return FlagEvidence(acts, kept, failures, self.plan.bound, bool(self.wanted.get(CLOCK)))

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == READY:
            self._ready.add(entry.who)
        elif entry.op == ANNOUNCE and entry.phase == INVOKE:
            self._sections[entry.who] = entry.of["section"]
            self._inside.discard(entry.who)
        elif entry.op == ANNOUNCE and entry.phase == OK and self._sections[entry.who] >= LONG:
            self._inside.add(entry.who)
        elif entry.op in (SATISFY, FAILING, RELEASE):
            self._inside.discard(entry.who)
            if entry.op != RELEASE and entry.phase == OK:
                self._ended[entry.of["flag"]] = entry.op
        elif entry.op == ROUND:
            self._parts[entry.of["k"]].add(entry.who)

    def pace(self) -> None:
        """Begin the next round when this one is over; after the last, end once all faults are done."""
        number, over = self.limit
        if (
            not over
            and len(self._parts[number]) >= self.plan.contenders * _QUORUM
            and flag_of(number) in self._ended
        ):
            # An awaiter of any of several flags waits on while one has failed: not in the last round.
            failed = self._ended.pop(flag_of(number)) == FAILING
            more = failed or number < self.plan.rounds or not self.nemesis.finished
            self.allow(number + 1 if more else number, over=not more)

    # -- faults --

    def own_faults(self) -> Mapping[str, Fault]:
        return {
            KILL: functools.partial(self._hunt, self._kill),
            FREEZE: functools.partial(self._hunt, self.nemesis.freeze),
        }

    def _kill(self, one: Client | None) -> Steps:
        yield self.nemesis.kill(one)

    def _hunt(self, hurt: Callable[[Client | None], Steps]) -> Steps:
        """Wait for a holder in a long section to hurt, in most cases."""
        prey = None
        if self.nemesis.chance.random() < self.plan.share:
            until = time.monotonic() + _PATIENCE
            while not (prey := self._holder()) and time.monotonic() < until:
                yield False
        self.holders_hit += prey is not None
        yield from hurt(prey)

    def _holder(self) -> Client | None:
        nemesis = self.nemesis
        return nemesis.one_of([one for one in nemesis.victims() if one.name in self._inside])

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
            "holders hit": self.holders_hit,
            "holds": counts[ANNOUNCE, OK],
            "refused": reasons[ANNOUNCE, "FlagHeld"],
            "unknown": sum(n for (_, phase), n in counts.items() if phase == UNKNOWN),
            "failures": counts[FAILING, OK],
            "stale ends refused": sum(
                reasons[op, "NotHolder"] for op in (SATISFY, FAILING, RELEASE)
            ),
            "writes": counts[WRITE, OK],
            "stale writes refused": counts[WRITE, FAIL],
            "awaits": counts[AWAIT, OK],
            "await failures": reasons[AWAIT, "FlagFailed"],
            "await timeouts": reasons[AWAIT, "TimedOut"],
        }


torture = Rounds.torture
