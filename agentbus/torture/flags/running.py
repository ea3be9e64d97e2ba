"""A run of rounds: who contends, what goes wrong, and what came of it."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import agentbus
from agentbus.torture.flags import checks
from agentbus.torture.flags.acts import ANNOUNCE, READY, ROUND, SATISFY, WRITE, Story, paired
from agentbus.torture.flags.hunting import Hunter
from agentbus.torture.flags.orders import END
from agentbus.torture.flags.plan import GENEROUS, flag_of
from agentbus.torture.history import FAIL, OK, Entry
from agentbus.torture.nemesis import (
    CLOCK,
    CUT,
    FREEZE,
    FULL_MEMORY,
    HALF_OPEN,
    KILL,
    LATENCY,
    LOST_REPLY,
    LOST_REQUEST,
    SERVER_KILL,
    SLOW_DISK,
    Client,
    possible,
)
from agentbus.torture.order import Order
from agentbus.torture.server import Server
from agentbus.torture.site import Site, through, upstream_of
from agentbus.torture.verdict import Verdict, found_by

# By the minute.
_ROUNDS = 100.0
_FAULTS = {
    KILL: 20.0,
    FREEZE: 6.0,
    CUT: 6.0,
    HALF_OPEN: 6.0,
    LATENCY: 6.0,
    LOST_REPLY: 6.0,
    LOST_REQUEST: 6.0,
    SERVER_KILL: 4.0,
    SLOW_DISK: 3.0,
    FULL_MEMORY: 3.0,
    CLOCK: 3.0,
}
_CONTENDERS, _FEW, _FEW_BELOW = 50, 12, 1.0
# A round is over when so many have done their part: the others are frozen, cut off or dead.
_QUORUM = 0.75
# How much of the time is for the faults, and how much longer it may all take on a busy machine.
_SHARE, _SLACK, _LEAST = 0.55, 6.0, 180.0
_BOUND = 30.0


class Plan(NamedTuple):
    """What is to be done, and what is to go wrong meanwhile; spans in seconds."""

    rounds: int
    contenders: int
    faults: Mapping[str, int]
    gap: float
    limit: float
    patience: float = GENEROUS
    bound: float = _BOUND
    kind: str = ""
    # By which all answers are late.
    delay: float = 0.0
    # How many deaths and frosts are to be a holder's.
    share: float = 0.7


# Nothing hurts these but what brings their mistake to light, and they give up sooner.
_OF_CONTROLS = {
    "check_then_wait": Plan(3, 8, {}, 1.0, _LEAST, 4.0, 2.0, "check_then_wait", delay=0.04),
    "unfenced_lease": Plan(8, 8, {FREEZE: 4}, 0.3, _LEAST, kind="unfenced_lease", share=1.0),
    "check_then_set": Plan(5, 8, {}, 1.0, _LEAST, kind="check_then_set"),
}


def plan_of(order: Order) -> Plan:
    """Return the plan of an order."""
    if order.control is not None:
        return _OF_CONTROLS[order.control]
    faults = {kind: order.number(rate) for kind, rate in _FAULTS.items()}
    seconds = order.minutes * 60
    return Plan(
        rounds=order.number(_ROUNDS, least=10),
        contenders=_CONTENDERS if order.minutes >= _FEW_BELOW else _FEW,
        faults=faults,
        gap=seconds * _SHARE / sum(faults.values()),
        limit=seconds * _SLACK + _LEAST,
    )


class Rounds:
    """Tells the contenders which round is on."""

    def __init__(self, site: Site, plan: Plan) -> None:
        self._site = site
        self._plan = plan
        self._ready: set[str] = set()
        self._satisfied: set[str] = set()
        self._parts: dict[int, set[str]] = collections.defaultdict(set)
        self._pending: dict[tuple[str, object], str] = {}
        self.number = 0
        self.began = time.monotonic()

    @property
    def told(self) -> str:
        """What a contender is told that comes now."""
        return END if self.number < 0 else str(self.number)

    @property
    def played(self) -> int:
        """How many rounds there were."""
        return len(self._parts)

    @property
    def part_in_each(self) -> float:
        """How many took part in a round, in the mean."""
        return sum(map(len, self._parts.values())) / max(1, len(self._parts))

    def saw(self, entry: Entry, *, more: bool) -> None:
        """Follow a history, and go on to the next round when this one is over; `more` asks for another."""
        if entry.op == READY:
            self._ready.add(entry.who)
            if self.number == 0 and len(self._ready) == self._plan.contenders:
                self._tell(1)
        elif entry.op == SATISFY:
            key = (entry.who, entry.of["n"])
            if "flag" in entry.of:
                self._pending[key] = entry.of["flag"]
            elif (flag := self._pending.pop(key)) and entry.phase == OK:
                self._satisfied.add(flag)
        elif entry.op == ROUND:
            self._parts[entry.of["k"]].add(entry.who)
        if self.number > 0 and self._over():
            self._satisfied.discard(flag_of(self.number))
            self._tell(self.number + 1 if self.number < self._plan.rounds or more else -1)

    def _over(self) -> bool:
        enough = self._plan.contenders * _QUORUM
        return len(self._parts[self.number]) >= enough and flag_of(self.number) in self._satisfied

    def _tell(self, number: int) -> None:
        self.number = number
        # Who is dead is told when it is replaced.
        for client in self._site.clients:
            client.tell(self.told)


def run(order: Order) -> Verdict:
    """Run an order, and judge it."""
    plan = plan_of(order)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        server = None
        if order.url is None:
            server = stack.enter_context(Server(order.place / "server", clock=True))
        url = server.url if server is not None else str(order.url)
        project = order.project
        stack.callback(_clear, url, project)
        site = stack.enter_context(Site(order.place, upstream_of(server, order.url)))
        wanted = possible(plan.faults, server)
        hunter = Hunter(plan.share, wanted, plan.gap, order.seed, site.clients, server)
        rounds = Rounds(site, plan)
        in_time = _contend(order, plan, site, project, hunter, rounds)
        story = _story(site, plan, url, project, in_time=in_time, shifted=bool(wanted.get(CLOCK)))
        figures = _figures(story, site, hunter, rounds)
    return Verdict(
        "flags",
        order.seed,
        time.monotonic() - began,
        hunter.counts,
        wanted,
        figures,
        found_by(story, checks.CHECKS),
        order.place,
        order.control,
    )


def _contend(
    order: Order, plan: Plan, site: Site, project: str, hunter: Hunter, rounds: Rounds
) -> bool:
    def words(client: Client) -> list[str]:
        return [
            *("agentbus.torture.flags.contender", plan.kind, str(order.seed)),
            *(through(client.proxies[0], order.url), project, str(site.place), client.name),
            *(str(plan.patience), rounds.told),
        ]

    def saw(entry: Entry) -> None:
        hunter.saw(entry)
        before = rounds.number
        rounds.saw(entry, more=not hunter.finished)
        if rounds.number != before and rounds.number % 100 == 0:
            order.tell(f"flags: round {rounds.number}, {hunter.done} of {hunter.total} faults")

    for number in range(plan.contenders):
        site.hire(f"agent-{number:02}", words).proxies[0].delay = plan.delay
    return site.run(hunter, lambda: site.finished, plan.limit, saw)


def _story(
    site: Site, plan: Plan, url: str, project: str, *, in_time: bool, shifted: bool
) -> Story:
    acts, strange = paired(site.reader.entries)
    if not in_time:
        strange.append(f"it was not over within {plan.limit:g} s")
    kept = dict(_kept(url, project, {act.flag for act in acts if act.op == ANNOUNCE}))
    if plan.kind:
        # What these keep is their own affair.
        kept = {}
    return Story(acts, kept, plan.bound, shifted, site.ended, strange)


def _kept(url: str, project: str, flags: set[str]) -> Iterator[tuple[str, int | None]]:
    with agentbus.connect(url, project=project, agent="judge", deadline=30.0) as bus:
        satisfied = {state.flag: state for state in bus.flags() if state.state == "satisfied"}
    for flag in flags:
        yield flag, satisfied[flag].token if flag in satisfied else None


def _figures(story: Story, site: Site, hunter: Hunter, rounds: Rounds) -> dict[str, Any]:
    counts = collections.Counter((act.op, act.phase) for act in story.acts)
    reasons = collections.Counter(
        (act.op, act.told.get("error")) for act in story.acts if act.phase == FAIL
    )
    awaits = [act for act in story.acts if act.op == "await" and act.ok]
    return {
        "rounds": rounds.played,
        "contenders": len(site.clients),
        "took part": round(rounds.part_in_each, 1),
        "deaths": site.deaths,
        "holders hit": hunter.holders_hit,
        "holds": counts["announce", OK],
        "refused": reasons["announce", "FlagHeld"],
        "unknown": sum(n for (_, phase), n in counts.items() if phase == "unknown"),
        "stale ends refused": reasons["satisfy", "NotHolder"] + reasons["release", "NotHolder"],
        "writes": counts[WRITE, OK],
        "stale writes refused": counts[WRITE, FAIL],
        "awaits": len(awaits),
        "await timeouts": reasons["await", "TimedOut"],
    }


def _clear(url: str, project: str) -> None:
    with agentbus.connect(url, project=project, agent="judge", deadline=30.0) as bus:
        bus.clear()
