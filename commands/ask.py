"""ask: publish a task and wait for its result."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.commands.publish import CORRELATION_ID, HEADER, PRIORITY, caused, payload
from agentbus.core.errors import InvalidPayload

VERB = Verb(
    "ask",
    "Publish a task, wait for it, and print its result.",
    Param("QUEUE", "The queue.", required=True),
    Param("PAYLOAD|-|@FILE", "The payload.", dest="payload", required=True),
    Param(
        "--timeout S",
        "Give up after S seconds (30; 0: never). The task stays in the queue.",
        convert=seconds,
        default=30.0,
    ),
    PRIORITY,
    CORRELATION_ID,
    HEADER,
    text="Blocks until a worker has finished the task, without polling. A text is printed unchanged,"
    " any other result as one line of JSON, and no result as nothing. If the task was buried, exit"
    " 1, with its error; if there is no answer in time, exit 3. JSON: id, result.",
    examples=(
        "agentbus ask sums '[1, 2, 3]'",
        "agentbus ask reviews @diff.txt --timeout 10m",
    ),
    subject="queue",
)


def run(call: Call) -> None:
    """Publish the task and print its result."""
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
    _values.result(call.out, found.id, found.result)
