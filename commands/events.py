"""events: sends events, shows and administers consumers and parked events, checks schemas."""

from __future__ import annotations

from importlib import import_module

from agentbus.commands import _events, _together
from agentbus.commands._declare import Call, Param, Verb, actions, whole

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


def _rate(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e12:
        raise ValueError(f"{text!r} is not a number of at least 0")
    return found


VERB = Verb(
    "events",
    "Send events; show the status of consumers, and handle parked events.",
    actions(*_ACTIONS),
    Param("WORD...", "The arguments of the action, see below.", dest="words", many=True),
    Param("--metadata JSON", "With send: a JSON object beside the payload."),
    Param("--name N", "With parked and status: only this consumer's."),
    Param("--after ID", "With parked list: only those after this one.", convert=whole),
    Param("--limit N", "With parked list: at most N, the oldest first (100).", convert=whole),
    Param("--past", "With register: begin after the last published event."),
    Param("--force", "With forget: also drop its parked events."),
    Param(
        "--to ID",
        "With skip: up to and including this entry, or 'end'; without it the lost events.",
    ),
    Param("--accept", "With check: write FILE, even if something breaks."),
    Param("--stream S", "With demo: the stream (shop:orders)."),
    Param("--rate N", "With demo: events a second (5); 0 for no limit.", convert=_rate),
    Param("--count N", "With demo: end after N events.", convert=whole),
    Param("--seed N", "With demo: the same number makes the same payloads.", convert=whole),
    *_events.PARAMS,
    text="'send STREAM TYPE PAYLOAD' writes an event; PAYLOAD is a JSON object, - for stdin, or @FILE."
    " It is committed at the end, in its own transaction; a program that changes data and sends an"
    " event about it calls send_event in its own transaction instead. 'outbox relay' publishes it."
    " Prints its UUID. Exit 2 if PAYLOAD is not a JSON object. 'parked list' prints a line for each"
    " event that a consumer gave up on, 'parked show ID...' all details. 'parked retry [ID...]' makes"
    " its consumer try it once more, within seconds, and not in its order; 'parked drop ID...'"
    " removes it. Without ids 'retry' means all, or all of --name. Exit 5 if an id does not exist."
    " 'status' shows the lease of each role on each stream, its lag, and an alert: page if events wait"
    " and no process is active, or for 5 minutes; warn if they wait for a minute, are more than 10,000,"
    " or are parked. 'register STREAM NAME' adds a consumer before its first run: from then on nothing"
    " is removed that it has not passed. 'forget STREAM NAME' removes one that will not run again, for"
    " which all events would be kept; exit 4 if it runs, or has parked events. 'skip STREAM NAME' moves"
    " a consumer past events that are lost, or that it always fails at: they count as processed; if it"
    " runs, it continues after them within seconds. Exit 5 if the consumer does not exist. 'check"
    " MODULE FILE' imports a module and compares its registered schemas with FILE, JSON of those that"
    " were agreed on. New event types and new optional properties are compatible; breaking changes are"
    " printed, one a line: exit 6. Exit 5 if FILE does not exist; --accept writes it, and prints all"
    " changes. 'demo' sends random events of a shop until interrupted, each in its own transaction, a"
    " tenth of which are rolled back; it creates missing tables. Needs the extra events. JSON:"
    " event_uuid, stream, event_type for send, also payload for demo; for parked id, consumer, stream,"
    " event_uuid, event_type, attempts, parked_at, error, retrying, and for show position, outbox_id,"
    " payload, metadata; for retry and drop events; for register stream, consumer, new; for forget"
    " dropped; for skip before, after, events; for status stream, role, owner, token, expires,"
    " checkpoint, lag, lag_ms, parked, alert; for check stream, event_type, path, reason.",
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
    goes_with={
        "--metadata": ("send",),
        "--name": ("parked", "status"),
        **dict.fromkeys(("--after", "--limit"), ("parked",)),
        "--past": ("register",),
        "--force": ("forget",),
        "--to": ("skip",),
        "--accept": ("check",),
        **dict.fromkeys(("--stream", "--rate", "--count", "--seed"), ("demo",)),
    },
)


def run(call: Call) -> int | None:
    """Run the action, and return the exit code."""
    _together.check(VERB, call.args)
    module, name = _ACTIONS[call.args.action]
    found: int | None = getattr(import_module(f"{__package__}.{module}"), name)(call)
    return found
