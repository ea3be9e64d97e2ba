"""resume: tasks of a paused queue, or of a project that was halted, are taken again."""

from __future__ import annotations

from agentbus.admin import pause
from agentbus.commands import _order
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "resume",
    "Let tasks of a paused queue be taken again; without one, lift a halt.",
    Param("queue", metavar="QUEUE", help="The queue. Without it: the whole project."),
    text="Workers go on at once. Each order stands by itself: one for a queue, an agent or a worker"
    " outlasts the end of a halt, and the other way round. What was not paused: nothing happens,"
    " exit 0. No such queue: exit 5. JSON: kind, name, resumed.",
    examples=("agentbus resume mail", "agentbus resume"),
    subject="queue",
)


def run(call: Call) -> None:
    """Resume the queue, or the project."""
    queue = call.args.queue
    kind = pause.PROJECT if queue is None else "queue"
    _order.show_resumed(call.out, kind, queue, had=call.bus.resume(queue=queue))
