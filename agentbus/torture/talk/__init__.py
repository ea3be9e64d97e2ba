"""Talk under torture: agents that speak, overhear and take notes while others kill and cut them off."""

from __future__ import annotations

from collections.abc import Iterator

from agentbus.torture.order import Mode, Order
from agentbus.torture.verdict import Verdict


def torture(order: Order) -> Iterator[Verdict]:
    """Have ten agents talk until all faults were done, and judge what each of them heard."""
    # An agent's process loads this package, too, and is started a hundred times.
    from agentbus.torture.talk.run import run

    yield run(order)


MODE = Mode(
    "talk",
    "10 agents speak, overhear and take notes: nothing lost, doubled, or out of order",
    {
        "poll_by_id": "asks for the newest 20 now and then, and moves its cursor before it hands them out",
        "maxlen": "trims the channel to 20 entries at each speak, and never tells who missed what",
        "say_again": "says again whatever was not answered, as if it had not been said",
    },
    torture,
)
