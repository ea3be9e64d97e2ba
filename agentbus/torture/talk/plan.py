"""How much is said, by whom, and what goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agentbus.torture import nemesis
from agentbus.torture.order import Order

# A listener that is frozen until the channel was trimmed behind it.
OVERTAKE = "overtake"
# Of the time that a run is to take, what is left when the last word was said.
_TALKING = 0.8
# How many times longer than planned a run may take on a machine that has other work.
_PATIENCE = 6.0
_LEAST = 150.0
# What an implementation that is wrong is sure to stumble over.
_CONTROL = {
    nemesis.KILL: 2,
    nemesis.FREEZE: 1,
    nemesis.LOST_REPLY: 5,
    nemesis.CUT: 2,
    nemesis.SERVER_KILL: 1,
}
_CONTROL_AGENTS, _CONTROL_MESSAGES, _CONTROL_SECONDS = 5, 150, 4.0
_AGENTS = 10
_LEAST_BOUND = 300


class Plan(NamedTuple):
    """A run: how many messages each agent says within `seconds`, on a channel of `bound` entries.

    The replies that get lost are those to requests that hold `loses`, if it is not empty.
    """

    agents: int
    messages: int
    bound: int
    seconds: float
    faults: Mapping[str, int]
    loses: bytes = b""

    @property
    def gap(self) -> float:
        """Seconds from one fault to the next."""
        return self.seconds / max(1, sum(self.faults.values()))

    @property
    def deadline(self) -> float:
        """Seconds after which a run has failed."""
        return max(_LEAST, _PATIENCE * self.seconds)


def plan(order: Order) -> Plan:
    """Return what is to be done in so many minutes."""
    if order.control is not None:
        return Plan(
            *(_CONTROL_AGENTS, _CONTROL_MESSAGES, _LEAST_BOUND, _CONTROL_SECONDS, _CONTROL),
            # Who never learns that it was heard: of few lost replies all might be to somebody who listens.
            loses=b"XADD",
        )
    messages = order.number(1000, 50)
    faults = {
        nemesis.KILL: order.number(10, 3),
        nemesis.FREEZE: order.number(5),
        nemesis.CUT: order.number(5),
        nemesis.HALF_OPEN: order.number(4),
        nemesis.LATENCY: order.number(4),
        nemesis.LOST_REPLY: order.number(5),
        nemesis.LOST_REQUEST: order.number(4),
        nemesis.SERVER_KILL: order.number(4),
        nemesis.SLOW_DISK: order.number(3),
        nemesis.FULL_MEMORY: order.number(2),
        nemesis.CLOCK: order.number(2),
        OVERTAKE: order.number(1, 0),
    }
    # So small that a frozen agent can be overtaken, and so large that others are not at every turn.
    bound = min(2000, max(_LEAST_BOUND, messages // 2))
    return Plan(_AGENTS, messages, bound, order.minutes * 60 * _TALKING, faults)
