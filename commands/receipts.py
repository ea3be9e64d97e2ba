"""receipts: print how far a message got."""

from __future__ import annotations

from agentbus.commands import _inbox, _together
from agentbus.commands._declare import Call, Param, Verb, seconds
from agentbus.coordination import receipts
from agentbus.core.errors import UsageError

VERB = Verb(
    "receipts",
    Param("ID", "The message, as 'tell' or 'speak' printed it."),
    Param("--wait S", "Wait up to S seconds for the answer, and print it.", convert=seconds),
    Param("--for", "What to wait for (answer).", dest="until", choices=_inbox.UNTIL),
    text="Without ID, lists this agent's asks of the last week that were not answered. For a message of the"
    " channel: who has heard it of the agents present, a line each"
    " ('agentbus who' lists those). Exit 5 if there is no such message; exit"
    " 3 if the wait times out. JSON: id, to, state, sent, notified, read (times, or null), answered (the"
    " answer's id, or null).",
    examples=(
        "agentbus receipts",
        "agentbus receipts 1763622000123-0@reviewer",
        "agentbus receipts 1763622000123-0@reviewer --wait 60 --for read",
        "agentbus receipts 1763622000123-0",
    ),
    subject="id",
    goes_with={"--for": ("--wait",)},
    waits="wait",
)


def run(call: Call) -> None:
    """Print the receipts of a message."""
    args = call.args
    _together.check(VERB, args)
    scope = call.enter()
    if args.id is None:
        if args.wait is not None:
            raise UsageError("--wait needs a message to wait for", hint="give its id")
        now, shown = call.run(receipts.awaited_now(scope))
        for receipt in shown:
            _inbox.receipt(call, receipt, now, of_several=True)
        if not shown:
            call.out.warn("no ask of this agent is without an answer")
    elif "@" not in args.id:
        if args.wait is not None:
            raise UsageError(
                "a message of the channel cannot be waited for",
                hint="leave --wait out, or send the message with 'agentbus tell'",
            )
        now, shown = call.run(receipts.heard_by_now(scope, args.id))
        for receipt in shown:
            _inbox.receipt(call, receipt, now)
        if not shown:
            call.out.warn("no other agent is present")
    elif args.wait is not None:
        _inbox.await_all(call, [args.id], args.wait, args.until or "answer")
    else:
        now, receipt = call.run(receipts.receipt_now(scope, args.id))
        _inbox.receipt(call, receipt, now)
