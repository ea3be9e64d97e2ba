"""What the contenders' histories say: their operations, each with its invocation and its outcome."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.torture.history import INVOKE, OK, UNKNOWN, HistoryEntry

ANNOUNCE, RENEW, SATISFY, RELEASE = "announce", "renew", "satisfy", "release"
# The operation `fail`; `FAIL` is a phase of histories.
FAILING = "fail"
WRITE, AWAIT, ROUND, READY = "write", "await", "round", "ready"
# The process died before the answer.
PENDING = "pending"


class Act(NamedTuple):
    """One operation: `invoked` and `returned` in ns; `returned` is infinite if no answer came.

    `asked` are the details of the invocation, `told` those of the outcome.
    """

    who: str
    op: str
    invoked: int
    returned: float
    phase: str
    asked: Mapping[str, Any]
    told: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether it certainly happened."""
        return self.phase == OK

    @property
    def possible(self) -> bool:
        """Whether it may have happened."""
        return self.phase in (OK, UNKNOWN, PENDING)

    @property
    def flag(self) -> str:
        """Its flag."""
        return str(self.asked["flag"])

    @property
    def token(self) -> int | None:
        """The fencing token that it was granted, or used."""
        found: int | None = self.told.get("token", self.asked.get("token"))
        return found

    @property
    def hold(self) -> tuple[str, object]:
        """The identity of its hold."""
        token = self.token
        return ("token", token) if token is not None else (self.who, self.asked.get("hold"))


class FlagEvidence(NamedTuple):
    """What is known at the end of a run.

    `kept` is the token in each flag's completion, `failures` that in its failure, None where there is none;
    flags that were not looked at are missing. `bound` is how late an awaiter may wake, in seconds.
    `shifted`: the server's clock was moved.
    """

    acts: Sequence[Act]
    kept: Mapping[str, int | None] = {}
    failures: Mapping[str, int | None] = {}
    bound: float = 30.0
    shifted: bool = False

    def of(self, *ops: str) -> dict[str, list[Act]]:
        """Return the acts of these kinds by flag, in the order of their invocations."""
        found: dict[str, list[Act]] = defaultdict(list)
        for act in sorted(self.acts, key=lambda act: act.invoked):
            if act.op in ops:
                found[act.flag].append(act)
        return found


def paired(entries: Iterable[HistoryEntry]) -> tuple[list[Act], list[str]]:
    """Return the acts in histories, and the entries that make no sense."""
    open_: dict[tuple[str, str, object], HistoryEntry] = {}
    acts: list[Act] = []
    strange: list[str] = []
    for entry in sorted(entries, key=lambda entry: entry.at):
        if entry.op in (ROUND, READY):
            continue
        key = (entry.who, entry.op, entry.of["n"])
        if entry.phase == INVOKE:
            if key in open_:
                strange.append(f"invoked twice: {entry}")
            open_[key] = entry
            continue
        began = open_.pop(key, None)
        if began is None:
            strange.append(f"an outcome without an invocation: {entry}")
            continue
        acts.append(Act(entry.who, entry.op, began.at, entry.at, entry.phase, began.of, entry.of))
    acts += [
        Act(began.who, began.op, began.at, math.inf, PENDING, began.of, {})
        for began in open_.values()
    ]
    return acts, strange
