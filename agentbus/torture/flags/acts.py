"""What the contenders did: each thing from its invocation to its outcome, and the holds that they had."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agentbus.torture.history import INVOKE, OK, UNKNOWN, Entry

ANNOUNCE, RENEW, SATISFY, RELEASE = "announce", "renew", "satisfy", "release"
WRITE, AWAIT, ROUND, READY = "write", "await", "round", "ready"
# What was never answered: its process died.
PENDING = "pending"


class Act(NamedTuple):
    """One thing done: `invoked` and `returned` in ns, `returned` infinite where no answer came.

    `asked` is what was said when it was invoked, `told` what the outcome brought.
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
        """Whether it was done, for sure."""
        return self.phase == OK

    @property
    def possible(self) -> bool:
        """Whether it may have been done."""
        return self.phase in (OK, UNKNOWN, PENDING)

    @property
    def flag(self) -> str:
        """The flag that it was about."""
        return str(self.asked["flag"])

    @property
    def token(self) -> int | None:
        """The fencing token that it had, or was given."""
        found: int | None = self.told.get("token", self.asked.get("token"))
        return found

    @property
    def hold(self) -> tuple[str, object]:
        """What tells the hold that it was about from all others."""
        token = self.token
        return ("token", token) if token is not None else (self.who, self.asked.get("hold"))


class Story(NamedTuple):
    """All that is known at the end of a run.

    `kept` is the token in each flag's completion, None where there is none; a flag without an entry was
    not looked at. `bound` is in seconds: how late an awaiter may wake. `shifted` tells whether the
    server's clock was moved.
    """

    acts: Sequence[Act]
    kept: Mapping[str, int | None] = {}
    bound: float = 30.0
    shifted: bool = False
    ended: Sequence[str] = ()
    strange: Sequence[str] = ()

    def of(self, *ops: str) -> dict[str, list[Act]]:
        """Return the acts of these kinds by flag, in the order in which they were invoked."""
        found: dict[str, list[Act]] = defaultdict(list)
        for act in sorted(self.acts, key=lambda act: act.invoked):
            if act.op in ops:
                found[act.flag].append(act)
        return found


def paired(entries: Iterable[Entry]) -> tuple[list[Act], list[str]]:
    """Return the acts in histories, and what in them makes no sense."""
    open_: dict[tuple[str, str, object], Entry] = {}
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
            strange.append(f"an outcome of nothing: {entry}")
            continue
        acts.append(Act(entry.who, entry.op, began.at, entry.at, entry.phase, began.of, entry.of))
    acts += [
        Act(began.who, began.op, began.at, math.inf, PENDING, began.of, {})
        for began in open_.values()
    ]
    return acts, strange
