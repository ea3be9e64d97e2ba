"""How much is to be done and to go wrong, for a release, and for each of the wrong implementations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

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
)
from agentbus.torture.order import Order
from agentbus.torture.work import judging
from agentbus.torture.work.hands import KINDS
from agentbus.torture.work.judging import Story
from agentbus.torture.work.nemesis import PUBLISHER_KILL
from agentbus.torture.work.publisher import MAXLEN

Check = Callable[[Story], Collection[Any]]
# In each minute. Some publications are in doubt in the end: a little more than the 10,000 tasks.
_TASKS, _POISON = 10_200, 8
_FAULTS = {
    KILL: 100,
    SERVER_KILL: 20,
    FREEZE: 6,
    CUT: 10,
    HALF_OPEN: 10,
    LOST_REPLY: 10,
    LOST_REQUEST: 10,
    LATENCY: 4,
    SLOW_DISK: 3,
    FULL_MEMORY: 3,
    CLOCK: 2,
    PUBLISHER_KILL: 3,
}
# A run that takes so many times its minutes, and this long besides, will never end.
_PATIENCE, _LEAST_PATIENCE = 3, 120.0
# Tasks, seconds for each, poison, faults, and the check that finds each wrong implementation out.
_FOUND_OUT: dict[str, tuple[int, float, int, dict[str, int], Check]] = {
    "ack_first": (300, 0.03, 0, {KILL: 4}, judging.lost),
    "ack_after": (600, 0.03, 0, {FREEZE: 2}, judging.stale_accepted),
    "count_deliveries": (300, 0.03, 2, {KILL: 4}, judging.innocents_buried),
    # Long enough that a kill at work is one in a task, and not in an acknowledgement.
    "set_nx": (200, 0.1, 0, {KILL: 6}, judging.lost),
    MAXLEN: (300, 0.01, 0, {}, judging.lost),
}
_CONTROL_SECONDS = 50.0


class Plan(NamedTuple):
    """What is to be done, by whom, and what is to go wrong meanwhile."""

    tasks: int
    poison: int
    workers: Sequence[str]
    faults: Mapping[str, int]
    seconds: float
    checks: Collection[Check] = judging.CHECKS
    publisher: str = "library"
    # Whether the workers come when all is published, and are killed only at work.
    late_workers: bool = False
    toil: float = 0.06
    visibility: float = 1.0
    gap: float = 0.2  # Seconds from one fault to the next, about.


def plan_of(order: Order) -> Plan:
    """Return the plan for the size of an order, or for the control that it names."""
    if order.control is not None:
        return _control(order.control)
    return Plan(
        tasks=order.number(_TASKS, 100),
        poison=order.number(_POISON, 3),
        workers=[KINDS[number % len(KINDS)] for number in range(6)],
        faults={kind: order.number(number) for kind, number in _FAULTS.items()},
        seconds=_LEAST_PATIENCE + _PATIENCE * order.minutes * 60,
    )


def _control(name: str) -> Plan:
    """Return a small plan that finds this one out: its workers always have something to do."""
    tasks, toil, poison, faults, check = _FOUND_OUT[name]
    return Plan(
        tasks=tasks,
        poison=poison,
        workers=[name] * 3,
        faults=faults,
        seconds=_CONTROL_SECONDS,
        checks=[check],
        publisher=MAXLEN if name == MAXLEN else "plain",
        late_workers=True,
        toil=toil,
    )
