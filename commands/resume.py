"""resume: tasks of a paused queue are taken again."""

from __future__ import annotations

from agentbus.commands import _order
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "resume",
    "Let tasks of a paused queue be taken again.",
    Param("queue", metavar="QUEUE", required=True, help="The queue."),
    text="Its workers go on at once. An order for their agent, or for one of them alone, stands. A"
    " queue that was not paused: nothing happens, exit 0. No such queue: exit 5."
    " JSON: kind, name, resumed.",
    examples=("agentbus resume mail",),
    subject="queue",
)


def run(call: Call) -> None:
    """Resume the queue."""
    queue = call.args.queue
    _order.show_resumed(call.out, "queue", queue, had=call.bus.resume(queue=queue))
