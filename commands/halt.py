"""halt: no worker of the project takes a new task."""

from __future__ import annotations

from agentbus.commands import _order
from agentbus.commands._declare import Call, Verb

VERB = Verb(
    "halt",
    "Stop every worker of the project from taking new tasks.",
    *_order.OPTIONS,
    text="What runs is finished and acknowledged; what was taken and not begun is given back. Returns"
    " when every live worker has confirmed that it takes nothing: from then on no task begins before"
    " 'agentbus resume' without a queue. If one has not confirmed in time, the order stands all the"
    " same: exit 3. It holds for workers that start later, too, and for programs that fetch by hand."
    " Tasks are accepted meanwhile, and events are acted on. 'agentbus pause' without a queue shows it."
    " JSON: kind, name, by, at, why, confirmed, unconfirmed.",
    examples=(
        "agentbus halt --why 'the agents go in circles'",
        "agentbus halt --wait 30",
    ),
)


def run(call: Call) -> None:
    """Halt the project."""
    args = call.args
    _order.show_confirmed(call.out, call.bus.halt(why=args.why, wait=args.wait), args.wait)
