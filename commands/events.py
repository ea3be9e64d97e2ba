"""events: sends events, shows and administers consumers and parked events, checks schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from agentbus.commands import _events, _format, _schemas, _together, _values
from agentbus.commands._bare import actions, no_action, unknown_action
from agentbus.commands._declare import Call, Param, Verb, body, whole
from agentbus.commands._demo import demo as send_demo
from agentbus.commands._events import words
from agentbus.commands._format import age, count
from agentbus.core.clock import rfc3339
from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.core.names import MAX_BODY_BYTES, word

if TYPE_CHECKING:
    from agentbus.events import LeaseStanding, Parked

# JSON is often smaller in UTF-8 and without blanks; `send_event` checks the exact limit.
_READ = 8 * MAX_BODY_BYTES
_RATE = _values.number("a number of at least 0", lambda rate: 0 <= rate < 1e12)
_PARKED = ("list", "show", "retry", "drop")


VERB = Verb(
    "events",
    actions(
        {
            "send STREAM TYPE PAYLOAD": "Send one event; prints its UUID.",
            "status": "Print the lease of each role on each stream, its lag, and an alert.",
            "parked list": "Print a line for each event that a consumer gave up on.",
            "parked show ID...": "Print all details of parked events.",
            "parked retry [ID...]": "Have their consumers try them once more, within seconds.",
            "parked drop ID...": "Remove parked events for good; they count as processed.",
            "register STREAM NAME": "Add a consumer before its first run: events are kept for it.",
            "forget STREAM NAME": "Remove a consumer that will not run again.",
            "skip STREAM NAME": "Move a consumer past lost events, or past --to.",
            "check MODULE FILE": "Compare a module's schemas with the agreed ones; exit 6 if one breaks.",
            "demo": "Send random events of a shop until interrupted.",
        }
    ),
    Param("WORD...", "The arguments of the action.", dest="words", many=True),
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
    Param("--rate N", "With demo: events a second (5); 0 for no limit.", convert=_RATE),
    Param("--count N", "With demo: end after N events.", convert=whole),
    Param("--seed N", "With demo: the same number makes the same payloads.", convert=whole),
    *_events.PARAMS,
    text="PAYLOAD is a JSON object, - for stdin, or @FILE; exit 2 if it is not. 'send' commits the event"
    " in its own transaction; a program that changes data and sends an event about it calls"
    " send_event in its own transaction instead. 'outbox relay' publishes it. 'parked retry' is not"
    " in the event's order; without ids it means all, or all of --name. Exit 5 if an id does not"
    " exist. An alert of 'status' is page if events wait and no process is active, or for 5 minutes;"
    " warn if they wait for a minute, are more than 10,000, or are parked. All events would be kept"
    " for a consumer that will not run again; 'forget' exits 4 if it runs, or has parked events."
    " Events that 'skip' passes count as processed; if the consumer runs, it continues after them"
    " within seconds. Exit 5 if the consumer does not exist. For 'check', new event types and new"
    " optional properties are compatible; breaking changes are printed, one a line. Exit 5 if FILE,"
    " JSON of the agreed schemas, does not exist; --accept writes it, and prints all changes. 'demo'"
    " rolls a tenth of its transactions back, and creates missing tables. Needs the extra events."
    " JSON: event_uuid, stream, event_type for send, also payload for demo; for parked id, consumer,"
    " stream, event_uuid, event_type, attempts, timestamp, error, retrying, and for show position,"
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
    return _ACTIONS[call.args.action](call)


def _send(call: Call) -> None:
    args = call.args
    stream, kind, given = words(call, "STREAM TYPE PAYLOAD")
    payload = _object("payload", body("payload", given, None, _READ))
    metadata = None if args.metadata is None else _object("metadata", args.metadata)
    from agentbus.events import send_event  # needs the extra `events`

    ledger = _events.ledger(call)
    with ledger.committing("an event was sent") as connection:
        event_uuid = send_event(connection, stream, kind, payload, metadata=metadata, ledger=ledger)
    call.out.record({"event_uuid": event_uuid, "stream": stream, "event_type": kind}, event_uuid)


def _object(what: str, text: str) -> dict[str, Any]:
    """Parse a JSON object with the exact values of its numbers."""

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        why = "it is too deep" if isinstance(error, RecursionError) else error
        raise InvalidPayload(
            f"the {what} is not JSON ({why})", hint="give an object, as in '{\"order\": 7}'"
        ) from None
    if not isinstance(value, dict):
        raise InvalidPayload(
            f"the {what} is not a JSON object", hint="give one, as in '{\"order\": 7}'"
        )
    return value


_STATUS: dict[str, Callable[[LeaseStanding], str]] = {
    "STREAM": lambda lease: word(lease.stream),
    "ROLE": lambda lease: word(lease.role),
    "OWNER": lambda lease: word(lease.owner) if (lease.expires or 0) > 0 else "-",
    "CHECKPOINT": lambda lease: lease.checkpoint,
    "LAG": lambda lease: str(lease.lag),
    "BEHIND": lambda lease: age(lease.lag_ms / 1000),
    "PARKED": lambda lease: str(lease.parked),
    "ALERT": lambda lease: _format.critical(lease.alert or "-", lease.alert is not None),
}


def _status(call: Call) -> None:
    words(call, "")
    from agentbus.events import standing  # needs the extra `events`

    leases = [lease for row in standing(_events.ledger(call)) for lease in row.roles]
    if call.args.name is not None:
        leases = [lease for lease in leases if lease.role == call.args.name]
    _format.show(
        call.out, leases, _STATUS, lambda row: _values.fields(row) | {"alert": row.alert}, left=3
    )
    _events.warn_of_readers(call, leases)


def _parked(call: Call) -> None:
    args = call.args
    if not args.words:
        raise no_action(VERB, "parked", json=call.out.json)
    doing, *given = args.words
    if doing not in _PARKED:
        raise unknown_action(VERB, doing, "parked")
    ids = [_id(each) for each in given]
    if not ids and doing in ("show", "drop"):
        raise UsageError(
            f"{doing} needs the id of a parked event", hint="see 'agentbus events parked list'"
        )
    from agentbus import events  # needs the extra `events`

    ledger = _events.ledger(call)
    if doing in ("list", "show"):
        parked = events.parked(
            ledger, args.name, ids, after=args.after or 0, limit=args.limit or 100
        )
        for event in parked:
            _show(call, event, whole_of_it=doing == "show")
        return
    done = (events.retry if doing == "retry" else events.drop)(ledger, args.name, ids)
    said = "will be tried again" if doing == "retry" else "dropped"
    call.out.record({"events": done}, f"{count(done, 'event')} {said}")


def _id(text: str) -> int:
    try:
        return whole(text)
    except ValueError:
        raise UsageError(
            f"{text!a} is not the id of a parked event", hint="see 'agentbus events parked list'"
        ) from None


def _show(call: Call, parked: Parked, *, whole_of_it: bool) -> None:
    event, since = parked.event, rfc3339(parked.parked_at)
    if whole_of_it and not call.out.json:
        rows = {
            "parked": parked.id,
            "consumer": parked.consumer,
            "stream": f"{event.stream_name}, entry {event.redis_id}",
            "event": f"{event.event_type} {event.event_uuid}",
            "attempts": parked.attempts,
            "since": since,
            "error": parked.error,
            "payload": orjson.dumps(event.payload).decode(),
            "metadata": orjson.dumps(event.metadata).decode(),
        }
        _format.pairs(call.out, rows)
        return
    fields: dict[str, object] = {
        "id": str(parked.id),
        "consumer": parked.consumer,
        "stream": event.stream_name,
        "event_uuid": event.event_uuid,
        "event_type": event.event_type,
        "attempts": parked.attempts,
        "timestamp": since,
        "error": parked.error,
        "retrying": parked.waits,
    }
    if whole_of_it:
        fields |= {
            "position": event.redis_id,
            "outbox_id": str(event.outbox_id),
            "payload": event.payload,
            "metadata": event.metadata,
        }
    text = f"{parked.id} {parked.consumer} {event.event_type} after {count(parked.attempts, 'attempt')}"
    text += f" at {since}: {parked.error}"
    call.out.record(fields, text + " (to be tried again)" * parked.waits)


def _register(call: Call) -> None:
    stream, name = words(call, "STREAM NAME")
    from agentbus.events import register_consumer  # needs the extra `events`

    ledger = _events.ledger(call)
    new = register_consumer(ledger, stream, name, past=call.args.past, bus=call.bus)
    fields: dict[str, object] = {"stream": stream, "consumer": name, "new": new}
    call.out.record(fields, f"{name} is known" + ("" if new else " already, and stays where it is"))


def _forget(call: Call) -> None:
    """Delete a consumer or reader that will not run again."""
    stream, name = words(call, "STREAM NAME")
    from agentbus.events import forget_consumer, forget_reader  # needs the extra `events`
    from agentbus.events.leases import READER  # needs the extra `events`

    if name.startswith(READER):
        forget_reader(call.bus, stream, name)
        dropped, done = 0, "will be forgotten when the stream's relays next check"
    else:
        ledger = _events.ledger(call)
        dropped = forget_consumer(ledger, stream, name, force=call.args.force, bus=call.bus)
        done = "is forgotten"
    fields: dict[str, object] = {"stream": stream, "consumer": name, "dropped": dropped}
    more = f", and {count(dropped, 'parked event')} with it" if dropped else ""
    call.out.record(fields, f"{name} {done}{more}")


def _skip(call: Call) -> None:
    stream, name = words(call, "STREAM NAME")
    from agentbus.events import skip_events  # needs the extra `events`

    done = skip_events(_events.ledger(call), call.bus, stream, name, to=call.args.to)
    fields = {"stream": stream, "consumer": name, **_values.fields(done)}
    if done.before == done.after:
        text = f"{name} stays at {done.after}: nothing was skipped"
    else:
        most = "up to " if call.args.to is None else ""
        text = f"{name} goes on past {done.after}: {most}{count(done.events, 'event')} skipped"
    call.out.record(fields, text)


def _check(call: Call) -> int:
    return _schemas.check(call)


def _demo(call: Call) -> None:
    send_demo(call)


_ACTIONS: dict[str, Callable[[Call], int | None]] = {
    "send": _send,
    "status": _status,
    "parked": _parked,
    "register": _register,
    "forget": _forget,
    "skip": _skip,
    "check": _check,
    "demo": _demo,
}
