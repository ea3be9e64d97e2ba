"""result: what a task came to."""

from __future__ import annotations

from agentbus.commands import _show
from agentbus.commands._declare import Call, Param, Verb, seconds

VERB = Verb(
    "result",
    "Print the result of a finished task.",
    Param("id", metavar="ID", required=True, help="The task's id, as 'publish' printed it."),
    Param("wait", "--wait", metavar="S", convert=seconds, help="Wait so many seconds for it."),
    Param(
        "group",
        "--group",
        metavar="G",
        help="Whose result, where several groups do the task (default, or the only one).",
    ),
    text="Text is printed as it is, anything else as one line of JSON, and nothing where it is done and"
    " came to nothing. Results are kept for 24 hours, unless the queue's policy says otherwise. Not"
    " finished, buried, or no such task: exit 5; with --wait, exit 3 when the time is over."
    " JSON: id, result.",
    examples=(
        "agentbus result 1763622000123-0@build --wait 60",
        "agentbus result 1763622000123-0@build --json",
    ),
    subject="id",
)


def run(call: Call) -> None:
    """Print the result."""
    args = call.args
    found = call.bus.result(args.id, args.wait or None, group=args.group)
    _show.result(call.out, args.id, found)
