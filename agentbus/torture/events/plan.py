"""How much there is to be sent, by whom, and what is to go wrong meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from agentbus.torture import nemesis
from agentbus.torture.order import Order

ORDERS, STOCK = "orders", "stock"
RELAY = "relay"
# Consumers, by the stream that they read.
READS = {"mail": ORDERS, "books": ORDERS, "shelf": STOCK}
DATABASE = "database_restart"
# What processes note of themselves.
READY, SEND, ACT, ROUND, STOPS = "ready", "send", "act", "round", "stops"
# Of the time, that which goes with the faults; the rest is for setting up and for draining.
_SHARE = 0.65
# How often each fault is done in a minute.
_A_MINUTE = {
    nemesis.KILL: 50.0,
    nemesis.SERVER_KILL: 5.0,
    nemesis.FREEZE: 5.0,
    nemesis.CUT: 5.0,
    nemesis.HALF_OPEN: 5.0,
    nemesis.LATENCY: 2.0,
    nemesis.LOST_REPLY: 2.0,
    nemesis.LOST_REQUEST: 2.0,
    nemesis.WIPE: 1.0,
    nemesis.SLOW_DISK: 1.0,
    nemesis.FULL_MEMORY: 1.0,
    nemesis.CLOCK: 1.0,
    DATABASE: 0.5,
}
_EVENTS_A_MINUTE = 2000.0
_FEWEST = 100


class Plan(NamedTuple):
    """One database's torture: `each` is how many processes a consumer has, `gap` seconds between faults.

    Frozen are they for longer than `lease`. A `late` producer keeps its first transaction open until the
    relay is past what came later. `control` is the wrong part that is among those that work.
    """

    events: int
    faults: dict[str, int]
    gap: float
    rolled_back: float = 0.1
    producers: int = 6
    relays: int = 2
    each: int = 2
    reads: tuple[str, ...] = tuple(READS)
    lease: float = 2.0
    late: bool = False
    control: str | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """Which streams there are."""
        return tuple(dict.fromkeys(READS[name] for name in self.reads))

    def roles(self) -> list[tuple[str, int]]:
        """Return who relays and consumes: the role, and which process of it."""
        found = [(RELAY, number) for number in range(self.relays)]
        return found + [(name, number) for name in self.reads for number in range(self.each)]


def planned(order: Order) -> Plan:
    """Return the plan of an order: 10 minutes are 20,000 events with 500 kills and 10 wipes."""
    if order.control is not None:
        return controlled(order.control)
    faults = {kind: order.number(often) for kind, often in _A_MINUTE.items()}
    gap = _SHARE * 60 * order.minutes / sum(faults.values())
    return Plan(order.number(_EVENTS_A_MINUTE, _FEWEST), faults, gap)


def controlled(control: str) -> Plan:
    """Return the plan by which a wrong implementation is to be caught, of one process each."""
    plan = Plan(
        *(60, {}, 0.2),
        producers=1,
        relays=1,
        each=1,
        reads=("shelf",),
        lease=1.0,
        control=control,
    )
    if control == "poll_by_id":
        return plan._replace(late=True)
    if control == "unfenced_lease":
        # One is frozen, and the other takes over.
        return plan._replace(each=2, faults={nemesis.FREEZE: 1})
    return plan._replace(faults={nemesis.KILL: 1})
