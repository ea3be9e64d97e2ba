"""result: what a task came to."""

from __future__ import annotations

from agentbus import queue
from agentbus.commands._declare import Call, Param, Verb, seconds

VERB = Verb(
    "result",
    "Print the result of a finished task.",
    Param("id", metavar="ID", required=True, help="The task's id, as 'publish' printed it."),
    Param("wait", "--wait", metavar="S", convert=seconds, help="Wait so many seconds for it."),
    text="Text is printed as it is, anything else as one line of JSON. Results are kept for 24 hours."
    " No result (not finished, buried, or it came to nothing): exit 5; with --wait, exit 3 when the"
    " time is over. JSON: id, result.",
    examples=(
        "agentbus result 1763622000123-0@build --wait 60",
        "agentbus result 1763622000123-0@build --json",
    ),
    subject="id",
)


def run(call: Call) -> None:
    """Print the result."""
    import orjson

    args, out = call.args, call.out
    found = call.run(
        queue.result(call.enter(), args.id, args.wait or None), patience=args.wait or 0.0
    )
    if out.json:
        out.record({"id": args.id, "result": found}, "")
    elif isinstance(found, str):
        out.exactly(found.encode() if found.endswith("\n") else found.encode() + b"\n")
    else:
        out.record({}, orjson.dumps(found).decode())
