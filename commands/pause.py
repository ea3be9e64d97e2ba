"""pause: nothing new is taken from a queue."""

from __future__ import annotations

from agentbus.commands import _order
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "pause",
    "Have nothing new taken from a queue; without one, list what is paused.",
    Param("queue", metavar="QUEUE", help="The queue."),
    *_order.OPTIONS,
    text="What runs goes on. Returns when every live worker has confirmed that it takes nothing: a"
    " task that is published later does not run before 'resume'. If one has not confirmed in time,"
    " the order stands all the same: exit 3. It holds for workers that start later, too."
    " No such queue: exit 5. JSON: kind, name, by, at, why, confirmed, unconfirmed.",
    examples=(
        "agentbus pause mail --why 'the mail server moves'",
        "agentbus pause",
    ),
    subject="queue",
)


def run(call: Call) -> None:
    """Pause the queue, or print what is paused."""
    args = call.args
    if args.queue is None:
        for order in call.bus.paused():
            _order.show(call.out, order)
        return
    order = call.bus.pause(queue=args.queue, why=args.why, wait=args.wait)
    _order.show_confirmed(call.out, order, args.wait)
