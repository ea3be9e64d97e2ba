"""approve: ask a person to approve something."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._declare import Call, Param, Verb, body, seconds
from agentbus.coordination import approval, frames
from agentbus.core.errors import Refused
from agentbus.core.names import shell_word, word

VERB = Verb(
    "approve",
    Param("QUESTION|-|@FILE", "What the person is asked.", dest="question", required=True),
    Param(
        "--by human:NAME",
        "The person. May be repeated: the first answer decides.",
        many=True,
        required=True,
        values="agent",
    ),
    Param(
        "--timeout S",
        "Give up after S seconds, exit 3 (600; 0: never).",
        convert=seconds,
        default=600.0,
    ),
    text="Asks each person by a message, and waits for the first answer, without polling. A person"
    " answers in 'agentbus web --write', or on a terminal with 'agentbus reply ID yes' or 'no', and a"
    " reason after it; in a session of a coding agent that is refused. Exit 0 if approved, 4 if refused,"
    " 3 if nobody has answered in time. stderr says who may answer, and how. JSON: approved, by, reason,"
    " id, answer, waited_ms.",
    examples=(
        "agentbus approve 'deploy 1.2 to production?' --by human:anna && make deploy",
        "agentbus approve 'drop the table?' --by human:anna --by human:ben --timeout 1h",
    ),
    subject="by",
    waits="",
)


def run(call: Call) -> None:
    """Ask, say who may answer, wait, and print the decision."""
    args = call.args
    scope = call.enter()
    question = body("question", args.question, None, scope.max_body)
    now, asks = call.run(approval.request(scope, question, args.by))
    for ask in asks:
        seen = "never seen here" if ask.seen is None else f"seen {frames.ago(now - ask.seen)}"
        how = f"agentbus reply {shell_word(ask.id)} yes --agent {shell_word(ask.to)}"
        call.out.warn(
            f"{word(ask.to)} may answer ({seen}): in agentbus web, or with '{how}' (or no)"
        )
    wait = approval.decision(scope, [ask.id for ask in asks], args.timeout)
    decided = call.run(wait, patience=args.timeout or float("inf"))
    fields = {**_values.fields(decided, "approved", "by", "reason", "id", "answer")}
    reason = f": {decided.reason}" if decided.reason else ""
    if decided.approved:
        said = f"approved by {word(decided.by)}{reason}"
        call.out.record(fields | {"waited_ms": round(decided.waited * 1000, 3)}, said)
        return
    if call.out.json:
        call.out.record(fields | {"waited_ms": round(decided.waited * 1000, 3)}, "")
    raise Refused(
        f"{word(decided.by)} refused{reason}", hint="change what was asked, and ask again"
    )
