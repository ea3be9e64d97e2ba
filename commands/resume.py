"""resume: lift the pause of a queue, or the halt of the project."""

from __future__ import annotations

from agentbus.admin.pause import PROJECT
from agentbus.commands._declare import Call, Param, Verb
from agentbus.commands.pause import show_resumed

VERB = Verb(
    "resume",
    Param("QUEUE", "The queue (default: the whole project).", values="queue"),
    text="Workers continue at once. Orders are independent: an order for a queue, an agent or a worker"
    " remains in force after the end of a halt, and vice versa. If it was not paused, nothing happens,"
    " exit 0. No such queue: exit 5. JSON: kind, name, resumed.",
    examples=("agentbus resume mail", "agentbus resume"),
    subject="queue",
)


def run(call: Call) -> None:
    """Resume the queue, or the project."""
    queue = call.args.queue
    kind = PROJECT if queue is None else "queue"
    show_resumed(call.out, kind, queue, had=call.bus.resume(queue=queue))
