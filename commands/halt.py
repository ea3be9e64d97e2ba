"""halt: pause every worker of the project."""

from __future__ import annotations

from agentbus.commands._declare import Call, Verb
from agentbus.commands.pause import OPTIONS, show_confirmed

VERB = Verb(
    "halt",
    *OPTIONS,
    text="Running tasks are finished and acknowledged; tasks that were taken and not started are returned."
    " Returns when every live worker has confirmed: from then on no task starts until 'agentbus"
    " resume' without a queue. If a worker does not confirm in time, exit 3; the order remains in"
    " force. It also applies to workers that start later, and to programs that fetch. Tasks are still"
    " accepted, and events are still handled. 'agentbus pause' without a queue shows the order. JSON:"
    " kind, name, agent_id, timestamp, why, confirmed, unconfirmed.",
    examples=(
        "agentbus halt --why 'the agents go in circles'",
        "agentbus halt --wait 30",
    ),
)


def run(call: Call) -> None:
    """Halt the project."""
    args = call.args
    show_confirmed(call.out, call.bus.halt(why=args.why, wait=args.wait), args.wait)
