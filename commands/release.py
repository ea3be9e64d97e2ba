"""release: end a hold without satisfying the flag."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import FLAG, Call, Param, Verb, one_flag

VERB = Verb(
    "release",
    *FLAG,
    Param("--force", "Even if another agent holds it."),
    text="Wakes 'await --until free'; agents that await its outcome keep waiting. If another agent"
    " holds it, exit 4. JSON: flag, state, agent_id, timestamp, ttl, token, note.",
    examples=("agentbus release building",),
    subject="flag",
)


def run(call: Call) -> None:
    """Release the flag and print it."""
    args = call.args
    _values.flag(call.out, call.bus.release(one_flag(args), force=args.force))
