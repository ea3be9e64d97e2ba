"""Torture of queues and workers: nothing is lost, no innocent buried, no stale acknowledgement accepted."""

from __future__ import annotations

from collections.abc import Iterator

from agentbus.torture.order import Mode, Order
from agentbus.torture.verdict import Verdict

_CONTROLS = {
    "ack_first": "acknowledges tasks before it does them",
    "ack_after": "acknowledges without asking whose a task is by now",
    "count_deliveries": "takes the server's delivery count for the number of attempts",
    "set_nx": "marks a task as seen before it does it",
    "maxlen": "trims its stream to a length when it publishes",
}


def _torture(order: Order) -> Iterator[Verdict]:
    # Only here: each worker process loads this package, and there are a thousand of them.
    from agentbus.torture.work.run import torture

    yield from torture(order)


MODE = Mode(
    "work",
    "queues and workers: tasks done at least once, buried only if they deserve it",
    _CONTROLS,
    _torture,
)
