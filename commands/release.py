"""release: give a flag up without calling it done."""

from __future__ import annotations

from agentbus.commands import _show
from agentbus.commands._declare import Call, Param, Verb, one_flag

VERB = Verb(
    "release",
    "Give a flag up without calling it done.",
    Param("name", metavar="NAME", help="The flag."),
    Param("flag", "--flag", metavar="NAME", help="The flag."),
    Param("force", "--force", flag=True, help="Even if another agent holds it."),
    text="Wakes 'await --until free'; who awaits its satisfaction waits on. Not this agent's hold:"
    " exit 4. JSON: flag, state, agent_id, timestamp, ttl, token, note.",
    examples=("agentbus release building",),
    subject="flag",
)


def run(call: Call) -> None:
    """Release the flag and print it."""
    args = call.args
    _show.flag(call.out, call.bus.release(one_flag(args), force=args.force))
