"""events: send events, see how far consumers are and to what they put aside, move them, check schemas."""

from __future__ import annotations

from importlib import import_module

from agentbus.commands import _events
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.core.errors import UsageError

# Each action's module and function; it reads the words behind the action by itself.
_ACTIONS = {
    "send": ("_sending", "send"),
    "status": ("_standing", "status"),
    "parked": ("_parked", "parked"),
    "register": ("_roster", "register"),
    "forget": ("_roster", "forget"),
    "skip": ("_roster", "skip"),
    "check": ("_schemas", "check"),
    "demo": ("_demo", "demo"),
}
# Which actions an option goes with, where not with all.
_WITH = {
    "metadata": ("send",),
    "name": ("parked", "status"),
    "after": ("parked",),
    "limit": ("parked",),
    "past": ("register",),
    "force": ("forget",),
    "to": ("skip",),
    "accept": ("check",),
    "stream": ("demo",),
    "rate": ("demo",),
    "count": ("demo",),
    "seed": ("demo",),
}


def _rate(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e12:
        raise ValueError(f"{text!r} is no number from 0 on")
    return found


VERB = Verb(
    "events",
    "Send events; see how far consumers are, and to what they put aside.",
    Param(
        "action",
        metavar="ACTION",
        required=True,
        choices=tuple(_ACTIONS),
        help="send, status, parked, register, forget, skip, check or demo.",
    ),
    Param("words", metavar="WORD...", many=True, help="What the action is about, see below."),
    Param(
        "metadata",
        "--metadata",
        metavar="JSON",
        help="With send: a JSON object beside the payload.",
    ),
    Param("name", "--name", metavar="N", help="With parked and status: only this consumer's."),
    Param(
        "after",
        "--after",
        metavar="ID",
        convert=whole,
        help="With parked list: only those past this one.",
    ),
    Param(
        "limit",
        "--limit",
        metavar="N",
        convert=whole,
        help="With parked list: at most N, the oldest first (100).",
    ),
    Param(
        "past",
        "--past",
        flag=True,
        help="With register: begin behind all that is published now.",
    ),
    Param("force", "--force", flag=True, help="With forget: drop what it parked, too."),
    Param(
        "to",
        "--to",
        metavar="ID",
        help="With skip: up to and with this entry, or 'end'; without it past what is lost.",
    ),
    Param("accept", "--accept", flag=True, help="With check: write FILE, whatever was found."),
    Param(
        "stream",
        "--stream",
        metavar="S",
        help="With demo: where the events go (shop:orders).",
    ),
    Param(
        "rate",
        "--rate",
        metavar="N",
        convert=_rate,
        help="With demo: how many a second (5); 0 is as fast as it can.",
    ),
    Param("count", "--count", metavar="N", convert=whole, help="With demo: end after so many."),
    Param(
        "seed",
        "--seed",
        metavar="N",
        convert=whole,
        help="With demo: the same number makes the same payloads.",
    ),
    *_events.PARAMS,
    text="'send STREAM TYPE PAYLOAD' writes an event; PAYLOAD is a JSON object, - for stdin, or @FILE."
    " It is committed when this ends, in a transaction of its own; a program that changes"
    " something and tells of it sends in its own transaction instead, by send_event. 'outbox"
    " relay' publishes it. Prints its UUID. What is no JSON object is refused: exit 2. 'parked"
    " list' prints a line for each event that a consumer gave up on, 'parked show ID...' all that"
    " there is to know. 'parked retry [ID...]' has its consumer try it again, once, within"
    " seconds, and not in its order; 'parked drop ID...' removes it for good. Without ids 'retry'"
    " means all, or all of --name. Exit 5 if one that was named is not there. 'status' shows who"
    " acts on each stream, how far behind, and where an operator is needed: page where events wait"
    " that nobody acts on, or for 5 minutes; warn where they wait for a minute, are 10,000 or put"
    " aside. 'register STREAM NAME' makes a consumer known before its first run: from then on"
    " nothing is removed that it has not passed. 'forget STREAM NAME' is for one that is gone for"
    " good, for which all would be kept for ever; exit 4 if it runs, or has parked events. 'skip"
    " STREAM NAME' moves one past events that it was told are lost, or that it fails at, for good:"
    " they count as processed; one that runs goes on behind them within seconds. Exit 5 if there"
    " is no such consumer. 'check MODULE FILE' imports a module and compares the schemas that are"
    " registered then with FILE, JSON of those that were agreed on. New event types and new"
    " optional properties are fine; what breaks is told, a line each: exit 6. Exit 5 if FILE is"
    " not there; --accept writes it, and tells all that changed. 'demo' sends random events of a"
    " shop until interrupted, each in a transaction of its own, a tenth of which are rolled back"
    " instead; it makes the tables that are not there. Needs the extra events. JSON: event_uuid,"
    " stream, event_type for send, also payload for demo; for parked id, consumer, stream,"
    " event_uuid, event_type, attempts, parked_at, error, retrying, and for show position,"
    " outbox_id, payload, metadata; for retry and drop events; for register stream, consumer, new;"
    " for forget dropped; for skip before, after, events; for status stream, role, owner, token,"
    " expires, checkpoint, lag, lag_ms, parked, alert; for check stream, event_type, path, reason.",
    examples=(
        "agentbus events send orders OrderPlaced '{\"order\": 7}'",
        "jq -c .order new.json | agentbus events send orders OrderPlaced -",
        "agentbus events status",
        "agentbus events parked list --name welcome",
        "agentbus events parked retry 17",
        "agentbus events skip shop:orders welcome --to 1763622000123-0",
        "agentbus events check shop.schemas schemas.json",
        "agentbus events check shop.schemas schemas.json --accept",
        "agentbus events demo --rate 100 --count 1000",
    ),
    subject="action",
)


def run(call: Call) -> int | None:
    """Do what was asked with events, and return the exit code."""
    args = call.args
    for option, actions in _WITH.items():
        given = getattr(args, option)
        if args.action not in actions and given is not None and given is not False:
            raise UsageError(
                f"--{option} goes with {' and '.join(actions)} alone", hint="leave it out"
            )
    module, name = _ACTIONS[args.action]
    found: int | None = getattr(import_module(f"{__package__}.{module}"), name)(call)
    return found
