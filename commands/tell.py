"""tell: send a message to one agent, or to several."""

from __future__ import annotations

from agentbus.commands import _inbox, _session, _together
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.coordination import tell
from agentbus.core.errors import UsageError

VERB = Verb(
    "tell",
    Param(
        "TO[,TO...]",
        "The agents; NAME@project is one of another project.",
        dest="to",
        required=True,
        values="agent",
    ),
    Param("TEXT|-|@FILE", "The message.", dest="text"),
    Param("--msg TEXT", "The message, taken literally."),
    Param("--topic T", "The topic.", values="topic"),
    Param("--thread ID", "Continue the thread that began with this message."),
    Param("--urgent", "Show it before all others."),
    Param(
        "--give PATH", "Give this agent's lease of PATH to the other. May be repeated.", many=True
    ),
    Param("--wait S", "Wait up to S seconds for the answer, and print it.", convert=seconds),
    Param("--for", "What to wait for (answer).", dest="until", choices=_inbox.UNTIL),
    text="Each agent keeps it in its inbox until it has read it ('agentbus inbox'). Prints the id, and"
    " what is known of the agent. A message that ends with ? or waits for an answer is an ask. Exit 5 if"
    " nobody of that name ever used the project; then no agent gets it. Exit 3 if there is no answer in"
    " time, with how far the message got; exit 1 if an inbox holds 1,000 unread messages; exit 4 after"
    " 20 messages between two agents in a minute. The answer is printed as 'inbox' prints it. JSON:"
    " id, to, state, seen, unread.",
    examples=(
        "agentbus tell reviewer 'please look at db.py'",
        "agentbus tell reviewer 'does migration 42 drop the column?' --wait 300",
        "agentbus tell ada,bob @plan.md --topic plan --urgent",
        "agentbus tell reviewer 'the build is broken' --wait 60 --for read",
        "agentbus tell ada 'the parser is yours' --give 'src/parser/**'",
    ),
    subject="to",
    goes_with={"--for": ("--wait",)},
    waits="wait",
)


def run(call: Call) -> None:
    """Send the message, print its ids, and wait if requested."""
    args = call.args
    _together.check(VERB, args)
    scope = call.enter()
    agents = [message.strip() for message in args.to.split(",") if message.strip()]
    if not agents:
        raise UsageError("no agent was named", hint="name at least one")
    until = args.until or "answer"
    text = body("text", args.text, args.msg, scope.max_body, "--msg")
    now, sent = call.run(
        tell.tell_now(
            scope,
            agents,
            text,
            topic=args.topic,
            thread=args.thread,
            urgent=args.urgent,
            ask=args.wait is not None and until == "answer",
            file=file_name(args.text),
            give=args.give,
        )
    )
    if scope.peers:
        _session.warn(call)
    for message in sent:
        _inbox.sent(call, message, now)
    if args.wait is not None:
        _inbox.await_all(call, [message.id for message in sent], args.wait, until)


def file_name(argument: str | None) -> str | None:
    """Return the name of the file of a body that was given as `@FILE`."""
    return argument[1:].rpartition("/")[2] if argument and argument[0] == "@" else None
