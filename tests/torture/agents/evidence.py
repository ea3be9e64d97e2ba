"""What the agents' histories say, in the shape that the checks judge."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from agentbus.core.stream import position
from tests.torture.agents.agent import (
    DROP,
    GIVE,
    HEARD,
    LEASE,
    LIFE,
    LOOK,
    RECEIPT,
    RENEW,
    REPLY,
    TELL,
)
from tests.torture.history import FAIL, INVOKE, OK, HistoryEntry

# A stream id's two numbers.
Position: TypeAlias = tuple[int, int]
# The process died before the answer.
PENDING = "pending"


class AgentAct(NamedTuple):
    """One operation: `invoked` and `returned` in ns; `returned` is infinite if no answer came.

    `asked` are the details of the invocation, `said` those of the outcome.
    """

    who: str
    op: str
    invoked: int
    returned: float
    phase: str
    asked: Mapping[str, Any] = {}
    said: Mapping[str, Any] = {}

    @property
    def ok(self) -> bool:
        """Whether it certainly happened."""
        return self.phase == OK

    @property
    def possible(self) -> bool:
        """Whether it may have happened."""
        return self.phase != FAIL


class Reading(NamedTuple):
    """A message was read: not before `since` and not after `at`, in ns."""

    reader: str
    id: str
    sender: str
    text: str
    since: int
    at: int


class InboxLook(NamedTuple):
    """What counted as read at a time, in ns: all messages up to `heard`, and those of `beyond`."""

    reader: str
    at: int
    heard: Position
    beyond: frozenset[Position] = frozenset()

    def has(self, entry: Position) -> bool:
        """Tell whether a message counted as read."""
        return entry <= self.heard or entry in self.beyond


class AgentEvidence(NamedTuple):
    """What is known at the end of a run.

    `inboxes` are the messages that were kept, by agent: their fields by id. `left` are the leases that were
    listed at the end, between `looked`: agent and pattern. `shifts` are the times in which the server's
    clock was moved. All times are in ns.
    """

    acts: Sequence[AgentAct]
    readings: Sequence[Reading]
    looks: Sequence[InboxLook]
    inboxes: Mapping[str, Mapping[Position, Mapping[str, str]]]
    bound: int
    left: Sequence[tuple[str, str]] = ()
    looked: tuple[int, float] = (0, math.inf)
    shifts: Sequence[tuple[int, float]] = ()
    # When the process of an agent began, each time.
    lives: Mapping[str, Sequence[int]] = {}

    def of(self, *ops: str) -> list[AgentAct]:
        """Return the acts of these kinds in the order of their invocations."""
        return sorted((act for act in self.acts if act.op in ops), key=lambda act: act.invoked)

    def shifted(self, since: float, until: float) -> bool:
        """Tell whether the server's clock was moved meanwhile."""
        return any(begin <= until and since <= end for begin, end in self.shifts)

    def figures(self) -> dict[str, int]:
        """Count what was done."""
        counts = Counter((act.op, act.phase) for act in self.acts)
        reasons = Counter((act.op, act.said.get("error")) for act in self.acts)
        return {
            "messages": counts[TELL, OK] + counts[GIVE, OK],
            "unknown": sum(n for (_, phase), n in counts.items() if phase not in (OK, FAIL)),
            "refused by a full inbox": reasons[TELL, "InboxFull"],
            "read": len(self.readings),
            "answers": counts[REPLY, OK],
            "repeated answers": sum(
                act.said.get("r") is True for act in self.acts if act.op == REPLY
            ),
            "receipts": counts[RECEIPT, OK],
            "leases": counts[LEASE, OK],
            "leases refused": sum("by" in act.said for act in self.acts if act.op == LEASE),
            "renewals": counts[RENEW, OK],
            "leases given": counts[GIVE, OK],
        }


class AgentCollector:
    """Collects the evidence line by line."""

    def __init__(self) -> None:
        self.acts: list[AgentAct] = []
        self.readings: list[Reading] = []
        self.looks: list[InboxLook] = []
        self.lives: dict[str, list[int]] = defaultdict(list)
        self._open: dict[str, HistoryEntry] = {}

    def saw(self, entry: HistoryEntry) -> None:
        """Take one line."""
        who, op, of = entry.who, entry.op, entry.of
        if op == LIFE:
            self.lives[who].append(entry.at)
            self._cut_off(who)
        elif op == HEARD:
            since = of.get("b", entry.at)
            self.readings.append(Reading(who, of["i"], of["a"], of["t"], since, entry.at))
        elif op == LOOK:
            beyond = frozenset(map(position, of["m"]))
            self.looks.append(InboxLook(who, entry.at, position(of["h"]), beyond))
        elif op in (TELL, REPLY, RECEIPT, LEASE, RENEW, GIVE, DROP):
            if entry.phase == INVOKE:
                self._open[who] = entry
                return
            asked = self._open.pop(who)
            self.acts.append(AgentAct(who, op, asked.at, entry.at, entry.phase, asked.of, of))

    def finish(self) -> None:
        """Cut off the operations that have no outcome by now."""
        for who in [*self._open]:
            self._cut_off(who)

    def _cut_off(self, who: str) -> None:
        asked = self._open.pop(who, None)
        if asked is not None:
            self.acts.append(AgentAct(who, asked.op, asked.at, math.inf, PENDING, asked.of))


def entry_of(known: str) -> tuple[Position, str]:
    """Return the entry and the agent of a message's id."""
    entry, _, agent = known.partition("@")
    return position(entry), agent
