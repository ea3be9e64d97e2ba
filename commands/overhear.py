"""overhear: print the messages that this agent has not heard yet."""

from __future__ import annotations

from agentbus.commands import _message
from agentbus.commands._declare import Args, Call, Param, Verb, seconds, whole
from agentbus.coordination import overhear

VERB = Verb(
    "overhear",
    Param(
        "--topic T",
        "Only this topic, with its own cursor; several as a,b; 'all' for all. May be repeated.",
        many=True,
        values="topic",
    ),
    Param("--since ID|TIME|30m", "Start after this message, or at this time; move no cursor."),
    Param("--last N", "The last N messages; move no cursor.", convert=whole),
    Param("--max, --limit N", "At most N messages (100; with --follow: no limit).", convert=whole),
    Param(
        "--max-chars N", "At most N letters (300 or more); the rest stays unheard.", convert=whole
    ),
    Param("--follow", "Wait for new messages."),
    Param("--timeout S", "With --follow: stop after S seconds.", convert=seconds),
    Param("--peek", "Move no cursor."),
    Param(
        "--text WORDS",
        "Only messages with all these words, of the newest 10,000, or since then; move no cursor.",
        dest="text_",
    ),
    Param("--others", "Leave out this agent's own messages."),
    Param("--from-start", "Without a cursor, start at the oldest message."),
    Param("--reset", "Discard the cursor: start at the oldest message."),
    Param("--catch-up", "Mark all messages as heard, and print none."),
    text="Oldest first. An agent without a cursor starts at the newest messages (with --follow, at the"
    " oldest), and a topic without one at the agent's cursor for all topics; what is skipped, and what"
    " remains beyond --max, is counted on stderr. The cursor moves after the output is written, so an"
    " agent that is killed in between hears the messages again. If there is nothing new, prints nothing"
    " and exits 0. JSON: id, agent_id, topic, message, timestamp; event and its fields where the bus"
    " spoke.",
    examples=(
        "agentbus overhear",
        "agentbus overhear --topic build --topic deploy",
        "agentbus overhear --since 30m --json",
        "agentbus overhear --follow --timeout 60",
        "agentbus overhear --text 'release notes'",
    ),
    subject="topic",
    excludes={
        "--catch-up": (
            *("--since", "--last", "--max", "--follow", "--timeout", "--peek", "--others"),
            *("--from-start", "--reset", "--max-chars"),
        ),
        "--text": ("--follow", "--from-start", "--reset", "--catch-up", "--max-chars"),
        "--max-chars": ("--follow",),
    },
    waits="follow",
)
# Maximum number of messages that a search reads.
_SEARCHED = 10_000


def run(call: Call) -> None:
    """Print the messages, each before the cursor moves past it."""
    args = call.args
    topics = [topic for each in args.topic for topic in each.split(",")]
    topics = [] if "all" in topics else topics
    if args.catch_up:
        _catch_up(call, topics)
        return
    if args.text_ is not None:
        _search(call, topics)
        return
    if args.max_chars is not None:
        _check(args)
    limit = args.max if args.max is not None or args.follow else 100
    scope = call.enter()
    if scope.peers and not (args.peek or args.since or args.last is not None):
        from agentbus.commands import _session

        _session.warn(call)
    op = overhear.overhear(
        scope,
        topics,
        limit=limit,
        start=args.since,
        last=args.last,
        peek=args.peek,
        follow=args.follow,
        timeout=args.timeout,
        others=args.others,
        reset=args.reset,
        begin="first" if args.from_start else "joined" if args.follow else "newest",
        make=_message.pair,
    )
    patience = (args.timeout or float("inf")) if args.follow else 0.0
    printed, stopped = 0, False
    if args.max_chars is not None:
        from agentbus.commands import _bounded

        printed, stopped = _bounded.overheard(call, call.each(op), args.max_chars)
    else:
        for entry_id, named in call.each(op, patience=patience):
            _message.show(call.out, entry_id, named)
            printed += named.get("event") not in overhear.REPORTS
    moves = not (args.peek or args.since or args.last is not None)
    if stopped and not moves:
        call.out.warn("more messages do not fit; a larger --max-chars prints more")
    elif moves and (stopped or printed == limit):
        remaining = call.run(overhear.unheard(scope, topics, others=args.others))
        if remaining:
            more, them = ("remains", "it") if remaining == 1 else ("remain", "them")
            call.out.warn(f"{remaining} more {more}; --catch-up marks {them} as heard")


def _search(call: Call, topics: list[str]) -> None:
    """Print the newest messages that contain all words of a text, in any case."""
    from agentbus.commands import _together

    args = call.args
    _together.check(VERB, args)
    words, most = args.text_.lower().split(), 100 if args.max is None else args.max
    last = args.last if args.last is not None or args.since else _SEARCHED
    op = overhear.overhear(
        call.enter(),
        topics,
        limit=_SEARCHED,
        start=args.since,
        last=last,
        others=args.others,
        make=_message.pair,
    )
    read, matching = 0, []
    for entry_id, named in call.each(op):
        read += 1
        text = str(named.get("message", "")).lower()
        if named.get("event") not in overhear.REPORTS and all(word in text for word in words):
            matching.append((entry_id, named))
    for entry_id, named in matching[max(0, len(matching) - most) :]:
        _message.show(call.out, entry_id, named)
    if len(matching) > most:
        call.out.warn(f"{len(matching) - most} earlier messages match; a larger --max prints more")
    if read >= _SEARCHED:
        call.out.warn(f"only {read:,} messages were searched; --since or --topic searches others")


def _check(args: Args) -> None:
    from agentbus.commands import _bounded, _together

    _together.check(VERB, args)
    _bounded.check(args.max_chars)


def _catch_up(call: Call, topics: list[str]) -> None:
    from agentbus.commands import _together

    _together.check(VERB, call.args)
    op = overhear.catch_up(call.enter(), topics, make=_message.pair)
    for entry_id, named in call.each(op):
        _message.show(call.out, entry_id, named)
