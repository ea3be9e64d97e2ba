"""release: end a hold without satisfying the flag."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import FLAG, Call, Param, Verb, one_flag
from agentbus.coordination import flags

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
    flag = one_flag(call.args)
    op = flags.end(call.enter(), flag, "released", force=call.args.force)
    _values.flag(call.out, call.run(op))
