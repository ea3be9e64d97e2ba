"""How many events are sent, by how many processes, and which faults happen meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from tests.torture import nemesis
from tests.torture.mode import Trial

ORDERS, STOCK = "orders", "stock"
RELAY = "relay"
# Consumers, by the stream that they read.
READS = {"mail": ORDERS, "books": ORDERS, "shelf": STOCK}
DATABASE = "database_restart"
# Operations in the histories.
READY, SEND, ACT, ROUND, STOPS = "ready", "send", "act", "round", "stops"
# The share of the time for the faults; the rest is for starting and for draining.
_SHARE = 0.65
_A_MINUTE = {
    nemesis.KILL: 50.0,
    nemesis.SERVER_KILL: 5.0,
    nemesis.FREEZE: 5.0,
    nemesis.CUT: 5.0,
    nemesis.WIPE: 1.0,
    DATABASE: 0.5,
}
_EVENTS_A_MINUTE = 2000.0
_FEWEST = 100


class EventsPlan(NamedTuple):
    """A run on one database, with `each` processes of a consumer, and `gap` seconds between faults.

    Freezes last longer than `lease`. A `late` producer keeps its first transaction open until the relay is
    past what came later.
    """

    events: int
    faults: dict[str, int]
    gap: float
    producers: int = 6
    relays: int = 2
    each: int = 2
    reads: tuple[str, ...] = tuple(READS)
    lease: float = 2.0
    late: bool = False

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that events are sent to."""
        return tuple(dict.fromkeys(READS[name] for name in self.reads))

    def roles(self) -> dict[str, str]:
        """Return the roles of relays and consumers, by the name of the process."""
        numbers = {RELAY: self.relays, **dict.fromkeys(self.reads, self.each)}
        return {f"{role}-{n}": role for role, number in numbers.items() for n in range(number)}


def planned(trial: Trial) -> EventsPlan:
    """Return the plan for a trial: 10 minutes are 20,000 events with 500 kills and 10 wipes."""
    if trial.control is not None:
        return _controlled(trial.control)
    faults = trial.faults(_A_MINUTE)
    gap = _SHARE * 60 * trial.minutes / sum(faults.values())
    return EventsPlan(trial.number(_EVENTS_A_MINUTE, _FEWEST), faults, gap)


def _controlled(control: str) -> EventsPlan:
    """Return the plan by which a wrong implementation is to be caught, with one process of each role."""
    plan = EventsPlan(
        *(60, {}, 0.1),
        producers=1,
        relays=1,
        each=1,
        reads=("shelf",),
        lease=1.0,
    )
    if control == "poll_by_id":
        return plan._replace(late=True)
    if control == "unfenced_lease":
        # One is frozen, and the other takes over.
        return plan._replace(each=2, faults={nemesis.FREEZE: 1})
    return plan._replace(faults={nemesis.KILL: 1})
