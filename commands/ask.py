"""ask: publish a task and wait for its result."""

from __future__ import annotations

from agentbus.commands import _envelope, _payload, _together, _values
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.core.errors import InvalidPayload

VERB = Verb(
    "ask",
    Param("QUEUE", "The queue.", required=True, values="queue"),
    Param("PAYLOAD|-|@FILE", "The payload.", dest="payload", required=True),
    Param(
        "--timeout S",
        "Give up after S seconds (30; 0: never). The task stays in the queue.",
        convert=seconds,
        default=30.0,
    ),
    *_envelope.PARAMS,
    _payload.TEXT,
    _payload.JSON,
    text="Blocks until a worker has finished the task, without polling. A text is printed unchanged,"
    " any other result as one line of JSON, and no result as nothing. If the task was buried, exit"
    " 8, with its error; if there is no answer in time, exit 3. JSON: task_id, result.",
    examples=(
        "agentbus ask sums '[1, 2, 3]'",
        "agentbus ask reviews @diff.txt --timeout 10m",
    ),
    subject="queue",
    excludes={"--text": ("--payload-json",)},
    waits="",
)


def run(call: Call) -> None:
    """Publish the task and print its result."""
    args = call.args
    _together.check(VERB, args)
    text = body("payload", args.payload, None, call.settings.max_body)
    if not text:
        raise InvalidPayload("the payload is empty", hint="send at least a word, or null")
    answer = call.bus.answer(
        args.queue,
        _payload.read(text, as_text=args.text, as_json=args.payload_json),
        args.timeout,
        **_envelope.fields(args),
    )
    _values.result(call.out, answer.id, answer.result)
