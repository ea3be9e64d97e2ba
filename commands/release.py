"""release: give a flag up without calling it done."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb, one_flag
from agentbus.commands.satisfy import show_end
from agentbus.coordination import announce

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
    flag = one_flag(args)
    op = announce.end(call.enter(), flag, "released", force=args.force)
    show_end(call.out, flag, "released", *call.run(op))
