"""overhear: print the messages that this agent has not heard yet."""

from __future__ import annotations

from agentbus.commands import _message
from agentbus.commands._declare import Call, Param, Verb, seconds, whole
from agentbus.coordination import overhear

VERB = Verb(
    "overhear",
    "Print the messages that this agent has not heard yet.",
    Param("--topic T", "Only this topic, with its own cursor. May be repeated.", many=True),
    Param("--since ID|TIME|30m", "Start after this message, or at this time; move no cursor."),
    Param("--last N", "The last N messages; move no cursor.", convert=whole),
    Param("--max, --limit N", "At most N messages (100; with --follow: no limit).", convert=whole),
    Param("--follow", "Wait for new messages."),
    Param("--timeout S", "With --follow: stop after S seconds.", convert=seconds),
    Param("--peek", "Move no cursor."),
    Param("--others", "Leave out this agent's own messages."),
    Param("--reset", "Discard the cursor: start at the oldest message."),
    text="Oldest first. The cursor moves after the output is written, so an agent that is killed in"
    " between hears the messages again. If there is nothing new, prints nothing and exits 0. JSON:"
    " id, agent_id, topic, message, timestamp; event and its fields where the bus spoke.",
    examples=(
        "agentbus overhear",
        "agentbus overhear --topic build --topic deploy",
        "agentbus overhear --since 30m --json",
        "agentbus overhear --follow --timeout 60",
    ),
    subject="topic",
)


def run(call: Call) -> None:
    """Print the messages, each before the cursor moves past it."""
    args = call.args
    limit = args.max if args.max is not None or args.follow else 100
    op = overhear.overhear(
        call.enter(),
        args.topic,
        limit=limit,
        start=args.since,
        last=args.last,
        peek=args.peek,
        follow=args.follow,
        timeout=args.timeout,
        others=args.others,
        reset=args.reset,
        make=_message.pair,
    )
    patience = (args.timeout or float("inf")) if args.follow else 0.0
    for entry_id, named in call.each(op, patience=patience):
        _message.show(call.out, entry_id, named)
