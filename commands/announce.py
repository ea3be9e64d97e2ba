"""announce: take a flag."""

from __future__ import annotations

from agentbus.commands._declare import FLAG, Call, Param, Verb, one_flag, seconds, whole
from agentbus.coordination import announce
from agentbus.core.names import word
from agentbus.core.settings import variable

VERB = Verb(
    "announce",
    *FLAG,
    Param("--ttl S", "End the hold after S seconds, unless it is renewed.", convert=seconds),
    Param("--force", "Take it even if another agent holds it."),
    Param("--wait S", "Wait up to S seconds for another agent's hold to end.", convert=seconds),
    Param("--timeout S", "The same as --wait: it sets no TTL.", convert=seconds),
    Param(
        "--token N",
        "Renew the hold with this token, whichever agent has it. [AGENTBUS_TOKEN]",
        convert=whole,
    ),
    Param("--note N", "A note for the channel: why, or what comes next."),
    text="If another agent holds it, exit 4, with the holder and the time. If this agent holds it, the"
    " hold is renewed. Within 'agentbus hold', AGENTBUS_TOKEN names the hold to renew. JSON: flag,"
    " agent_id, timestamp, ttl, token, and renewed (true) for a renewal; token is a fencing number"
    " that only grows.",
    examples=(
        "agentbus announce building",
        "agentbus announce deploy --ttl 300 --wait 60",
        "agentbus announce deploy --force",
    ),
    subject="flag",
    waits="wait timeout",
)


def run(call: Call) -> None:
    """Take the flag and print the hold."""
    args = call.args
    flag = one_flag(args)
    if args.timeout is not None:
        args.wait = args.timeout
        if args.ttl is None:
            call.out.warn(
                "--timeout is the time to wait, and the hold has no end: give it one by --ttl"
            )
    scope = call.enter()
    given = args.token
    # Within `agentbus hold`, use the token of its flag.
    if given is None and not args.force and variable("AGENTBUS_FLAG") == flag:
        outer = variable("AGENTBUS_TOKEN") or ""
        given = whole(outer) if outer.isdigit() else None
    op = announce.take(
        scope, flag, ttl=args.ttl, force=args.force, wait=args.wait, token=given, note=args.note
    )
    what, value, token, left = call.run(op, patience=args.wait or 0.0)
    agent, at = announce.holder(value), announce.since(value)
    fields = {"flag": flag, "agent_id": agent, "timestamp": at, "ttl": left, "token": token}
    renewed = what == "renewed"
    if renewed:
        fields["renewed"] = True
    until = "" if left is None else f" for {left:g} s"
    state = "renewed, held" if renewed else "held"
    if scope.peers and args.ttl is None:
        from agentbus.commands import _session

        _session.warn(call)
    call.out.record(
        fields, f"{word(flag)} {state} by {word(agent)} since {at}{until} (token {token})"
    )
