"""result: print the result of a task."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.commands.task import ended

VERB = Verb(
    "result",
    Param("ID", "The task's id, as 'publish' printed it.", required=True),
    Param("--wait S", "Wait up to S seconds for it.", convert=seconds),
    Param(
        "--group G",
        "The group, if several process the queue (default, or the only one).",
        values="group",
    ),
    text="A text is printed unchanged, any other result as one line of JSON, and no result as nothing."
    " Results are kept for 24 hours, unless the queue's policy says otherwise. If the task is not"
    " finished, or does not exist, exit 5; if it was buried, exit 8; if --wait ends without a result,"
    " exit 3."
    " JSON: task_id, result, began, finished, took_ms, worker, host, attempts (null where the log of"
    " attempts no longer has them).",
    examples=(
        "agentbus result 1763622000123-0@build --wait 60",
        "agentbus result 1763622000123-0@build --json",
    ),
    subject="id",
    waits="wait",
)


def run(call: Call) -> None:
    """Print the result."""
    args = call.args
    result = call.bus.result(args.id, args.wait or None, group=args.group)
    if not call.out.json:
        _values.result(call.out, args.id, result)
        return
    state = call.bus.task(args.id, group=args.group)
    call.out.record({"task_id": args.id, "result": result, **ended(state)}, "")
