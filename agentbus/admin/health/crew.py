"""Who works on which queue, who fell silent, and what is paused, for those who examine queues."""

from __future__ import annotations

from agentbus.core.keys import pause_field
from agentbus.core.record import Record
from agentbus.workers import registry
from agentbus.workers.registry import ALIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class Hand(Record):
    """A registered worker: for whom, where, and for how many seconds it has been silent."""

    worker: str
    agent: str
    host: str
    silent: float

    @property
    def alive(self) -> bool:
        """Whether its last beat still counts."""
        return self.silent <= ALIVE


class Crew:
    """The registered workers by queue and group, and the orders to pause."""

    def __init__(self, hands: Mapping[tuple[str, str], list[Hand]], orders: Mapping[str, str]):
        self._hands = hands
        self._orders = orders

    @property
    def number(self) -> int:
        """How many workers are alive."""
        return sum(hand.alive for hands in self._hands.values() for hand in hands)

    def of(self, queue: str, group: str) -> list[Hand]:
        """Return the workers of a group, those that fell silent among them."""
        return self._hands.get((queue, group), [])

    def alive(self, queue: str, group: str | None) -> list[Hand]:
        """Return the live workers of a group, or (None) of any group of the queue."""
        if group is not None:
            return [hand for hand in self.of(queue, group) if hand.alive]
        return [
            hand
            for (its, _), hands in self._hands.items()
            for hand in hands
            if its == queue and hand.alive
        ]

    def paused(self, queue: str) -> str | None:
        """Return why nothing is taken from a queue, or None if nothing was ordered."""
        fields = (pause_field("project"), pause_field("queue", queue))
        return next((self._orders[field] for field in fields if field in self._orders), None)

    @property
    def halted(self) -> bool:
        """Whether the whole project was ordered to take nothing."""
        return pause_field("project") in self._orders

    def stands(self, queue: str, hand: Hand) -> bool:
        """Tell whether a worker was ordered to take nothing."""
        fields = registry.fields_of(queue, hand.agent, hand.worker)
        return any(field in self._orders for field in fields)


def muster(scope: Scope) -> Op[Crew]:
    """Return who is there."""
    now, last, records = yield from registry.listed(scope)
    orders = yield from registry.orders_by_field(scope)
    hands: dict[tuple[str, str], list[Hand]] = {}
    for worker, record in records.items():
        where = record.get("queue", ""), record.get("group", "")
        host = f"{record.get('host', '?')}:{record.get('pid', '?')}"
        silent = max(0.0, now - last[worker])
        hands.setdefault(where, []).append(Hand(worker, record.get("agent", ""), host, silent))
    return Crew(hands, orders)
