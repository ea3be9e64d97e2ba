"""ask: put a task into a queue and wait for its result."""

from __future__ import annotations

from agentbus.commands import _show
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.commands.publish import caused, header, payload
from agentbus.core.errors import InvalidPayload

VERB = Verb(
    "ask",
    "Put a task into a queue and print its result.",
    Param("queue", metavar="QUEUE", required=True, help="The queue."),
    Param("payload", metavar="PAYLOAD|-|@FILE", required=True, help="What is asked."),
    Param(
        "timeout",
        "--timeout",
        metavar="S",
        convert=seconds,
        default=30.0,
        help="Give up after so long (30); 0 is no limit. The task stays in the queue.",
    ),
    Param(
        "priority",
        "--priority",
        choices=("low", "normal", "high", "critical"),
        help="What is done first (normal, unless the queue's policy says otherwise).",
    ),
    Param("correlation_id", "--correlation-id", metavar="ID", help="What it belongs to."),
    Param(
        "header",
        "--header",
        metavar="K=V",
        many=True,
        convert=header,
        help="A word beside the payload. May be repeated.",
    ),
    text="Waits until a worker has done the task, without polling. Text is printed as it is, anything"
    " else as one line of JSON, and nothing where there is no result. Buried: exit 1, with the error;"
    " no answer in time: exit 3. JSON: id, result.",
    examples=(
        "agentbus ask sums '[1, 2, 3]'",
        "agentbus ask reviews @diff.txt --timeout 10m",
    ),
    subject="queue",
)


def run(call: Call) -> None:
    """Ask, and print the answer."""
    args = call.args
    text = body("payload", args.payload, None, call.settings.max_body)
    if not text:
        raise InvalidPayload("the payload is empty", hint="send at least a word, or null")
    found = call.bus.answer(
        args.queue,
        payload(text),
        args.timeout,
        **caused(args.correlation_id, None),
        priority=args.priority,
        headers=dict(args.header) or None,
    )
    _show.result(call.out, found.id, found.result)
