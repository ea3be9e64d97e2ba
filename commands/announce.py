"""announce: take a flag."""

from __future__ import annotations

from agentbus.commands._declare import FLAG, Call, Param, Verb, one_flag, seconds
from agentbus.coordination import announce

VERB = Verb(
    "announce",
    "Take a flag: announce that this agent does something now.",
    *FLAG,
    Param("--ttl S", "End the hold after S seconds, unless it is renewed.", convert=seconds),
    Param("--force", "Take it even if another agent holds it."),
    Param("--wait S", "Wait up to S seconds for another agent's hold to end.", convert=seconds),
    text="If another agent holds it, exit 4, with the holder and the time. If this agent holds it, the"
    " hold is renewed. JSON: flag, agent_id, timestamp, ttl, token; token is a fencing number that"
    " only grows.",
    examples=(
        "agentbus announce building",
        "agentbus announce deploy --ttl 300 --wait 60",
        "agentbus announce deploy --force",
    ),
    subject="flag",
)


def run(call: Call) -> None:
    """Take the flag and print the hold."""
    args = call.args
    flag = one_flag(args)
    scope = call.enter()
    op = announce.take(scope, flag, ttl=args.ttl, force=args.force, wait=args.wait)
    _, value, token, left = call.run(op, patience=args.wait or 0.0)
    agent, at = announce.holder(value), announce.since(value)
    fields = {"flag": flag, "agent_id": agent, "timestamp": at, "ttl": left, "token": token}
    until = "" if left is None else f" for {left:g} s"
    call.out.record(fields, f"{flag} held by {agent} since {at}{until} (token {token})")
