"""events parked: lists, retries or drops parked events."""

from __future__ import annotations

import orjson

from agentbus.commands import _events, _format
from agentbus.commands._declare import Call, whole
from agentbus.commands._format import count
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.commands._output import Out
    from agentbus.events import Parked

_DOINGS = ("list", "show", "retry", "drop")


def parked(call: Call) -> None:
    """Run the action on parked events."""
    args = call.args
    doing, *given = args.words or ["nothing"]
    if doing not in _DOINGS:
        raise UsageError(
            f"'parked' takes {', '.join(_DOINGS)}, not {doing!a}",
            hint="see 'agentbus events --help'",
        )
    ids = [_id(each) for each in given]
    if not ids and doing in ("show", "drop"):
        raise UsageError(
            f"{doing} needs the id of a parked event", hint="see 'agentbus events parked list'"
        )
    from agentbus import events

    made = _events.ledger(call)
    if doing in ("list", "show"):
        for one in events.parked(
            made, args.name, ids, after=args.after or 0, limit=args.limit or 100
        ):
            if doing == "show" and not call.out.json:
                _show(call.out, one)
            else:
                _line(call.out, one, whole_of_it=doing == "show")
        return
    done = (events.retry if doing == "retry" else events.drop)(made, args.name, ids)
    said = "will be tried again" if doing == "retry" else "dropped"
    call.out.record({"events": done}, f"{count(done, 'event')} {said}")


def _id(text: str) -> int:
    try:
        return whole(text)
    except ValueError:
        raise UsageError(
            f"{text!a} is not the id of a parked event", hint="see 'agentbus events parked list'"
        ) from None


def _line(out: Out, one: Parked, *, whole_of_it: bool) -> None:
    event = one.event
    fields: dict[str, object] = {
        "id": str(one.id),
        "consumer": one.consumer,
        "stream": event.stream_name,
        "event_uuid": event.event_uuid,
        "event_type": event.event_type,
        "attempts": one.attempts,
        "parked_at": rfc3339(one.parked_at),
        "error": one.error,
        "retrying": one.waits,
    }
    if whole_of_it:
        fields |= {
            "position": event.redis_id,
            "outbox_id": str(event.outbox_id),
            "payload": event.payload,
            "metadata": event.metadata,
        }
    text = f"{one.id} {one.consumer} {event.event_type} after {count(one.attempts, 'attempt')}"
    text += f" at {fields['parked_at']}: {one.error}"
    out.record(fields, text + " (to be tried again)" * one.waits)


def _show(out: Out, one: Parked) -> None:
    event = one.event
    rows = {
        "parked": one.id,
        "consumer": one.consumer,
        "stream": f"{event.stream_name}, entry {event.redis_id}",
        "event": f"{event.event_type} {event.event_uuid}",
        "attempts": one.attempts,
        "since": rfc3339(one.parked_at),
        "error": one.error,
        "payload": orjson.dumps(event.payload).decode(),
        "metadata": orjson.dumps(event.metadata).decode(),
    }
    _format.pairs(out, rows)
