"""pause: stop workers from taking new tasks of a queue."""

from __future__ import annotations

from agentbus.commands import _pause_order
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "pause",
    "Pause a queue: workers take no new tasks. Without a name, list the pauses.",
    Param("QUEUE", "The queue."),
    *_pause_order.OPTIONS,
    text="Running tasks continue. Returns when every live worker has confirmed: a task that is"
    " published later does not run before 'resume'. If a worker does not confirm in time, exit 3;"
    " the order remains in force. It also applies to workers that start later. No such queue: exit"
    " 5. JSON: kind, name, by, at, why, confirmed, unconfirmed.",
    examples=(
        "agentbus pause mail --why 'the mail server moves'",
        "agentbus pause",
    ),
    subject="queue",
)


def run(call: Call) -> None:
    """Pause the queue, or print the orders to pause."""
    args = call.args
    if args.queue is None:
        for order in call.bus.paused():
            _pause_order.show(call.out, order)
        return
    order = call.bus.pause(queue=args.queue, why=args.why, wait=args.wait)
    _pause_order.show_confirmed(call.out, order, args.wait)
