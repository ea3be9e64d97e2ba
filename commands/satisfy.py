"""satisfy: release a flag as done."""

from __future__ import annotations

from agentbus.commands._declare import FLAG, Call, Param, Verb, one_flag
from agentbus.coordination import announce
from agentbus.core.names import word

VERB = Verb(
    "satisfy",
    *FLAG,
    Param("--force", "Even if another agent holds it."),
    Param("--note TEXT", "A note for the awaiters."),
    text="Records the completion, wakes the awaiters and reports it on the channel, in one atomic step."
    " If another agent holds the flag, exit 4. The flag need not be announced: this is how a job"
    " says 'ready'. JSON: flag, state, agent_id, timestamp, ttl, token, note.",
    examples=("agentbus satisfy building", "agentbus satisfy building --note 'image app:1.4'"),
    subject="flag",
)


def run(call: Call) -> None:
    """Satisfy the flag and print it."""
    end(call, "satisfied")


def end(call: Call, how: str) -> None:
    """End the hold as `satisfied` or `failed`, and print the flag."""
    args = call.args
    flag = one_flag(args)
    op = announce.end(call.enter(), flag, how, force=args.force, note=args.note)
    value, token = call.run(op)
    agent, at = announce.holder(value), announce.since(value)
    fields = {
        "flag": flag,
        "state": how,
        "agent_id": agent,
        "timestamp": at,
        "ttl": None,
        "token": token,
        "note": args.note,
    }
    text = f"{word(flag)} {how} by {word(agent)} at {at}"
    call.out.record(fields, text + (f": {args.note}" if args.note else ""))
