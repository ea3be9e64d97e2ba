"""Events under torture: what was committed has its effect once, whatever is killed, wiped or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from agentbus.torture.order import Mode, Order
from agentbus.torture.verdict import Verdict


def _torture(order: Order) -> Iterator[Verdict]:
    # Not before it is asked for: it needs what an extra brings.
    from agentbus.torture.events.running import verdicts

    yield from verdicts(order)


MODE = Mode(
    "events",
    "producers, relays and consumers on a database: each committed event has its effect once",
    MappingProxyType(
        {
            "poll_by_id": "a relay that reads the outbox by id > last: loses what is committed late",
            "mark_first": "a relay that marks events before it publishes them: loses them when it dies",
            "check_then_act": "a consumer that looks, acts, and remembers later: acts twice when it dies",
            "unfenced_lease": "a lease without a fencing token: two act when its holder was frozen",
        }
    ),
    _torture,
    needs=("sqlalchemy",),
    extra="torture",
)
