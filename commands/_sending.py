"""events send: an event from the shell."""

from __future__ import annotations

import json

from agentbus.commands import _events
from agentbus.commands._declare import Call, body
from agentbus.core.errors import InvalidPayload
from agentbus.core.names import MAX_BODY_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# JSON is often smaller in UTF-8 and without blanks; `send_event` checks the exact limit.
_READ = 8 * MAX_BODY_BYTES


def send(call: Call) -> None:
    """Send an event, and print its UUID."""
    args = call.args
    stream, kind, given = _events.words(call, "STREAM TYPE PAYLOAD")
    payload = _object("payload", body("payload", given, None, _READ))
    metadata = None if args.metadata is None else _object("metadata", args.metadata)
    from agentbus.events import send_event

    made = _events.ledger(call)
    with made.committing("an event was sent") as connection:
        found = send_event(connection, stream, kind, payload, metadata=metadata, ledger=made)
    call.out.record({"event_uuid": found, "stream": stream, "event_type": kind}, found)


def _object(what: str, text: str) -> dict[str, Any]:
    """Read a JSON object with the exact values of its numbers."""

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        found = json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        why = "it is too deep" if isinstance(error, RecursionError) else error
        raise InvalidPayload(
            f"the {what} is not JSON ({why})", hint="give an object, as in '{\"order\": 7}'"
        ) from None
    if not isinstance(found, dict):
        raise InvalidPayload(
            f"the {what} is not a JSON object", hint="give one, as in '{\"order\": 7}'"
        )
    return found
