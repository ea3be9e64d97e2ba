"""An event as handlers receive it, and its encoding as a stream entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.stream import is_number, position

if TYPE_CHECKING:
    from collections.abc import Sequence

# The metadata field with the time of `send_event`, in ms by the database's clock.
CREATED = "__creation_timestamp_ms__"
# Maximum number of digits of a ledger's identity, plus one.
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """A published event: `redis_id` is the id of its entry, `outbox_id` that of its outbox row.

    `ledger` is the identity of the ledger that sent it; 0 if its entry does not say.
    """

    stream_name: str
    redis_id: str
    event_type: str
    outbox_id: int
    event_uuid: str
    payload: dict[str, Any]
    metadata: dict[str, Any] | None
    ledger: int = 0

    @property
    def position(self) -> tuple[int, int]:
        """The id of the entry as two numbers."""
        return position(self.redis_id)


def words(row: Any, ledger: str) -> list[str | bytes]:
    """Return the fields and values of a stream entry for an outbox row of a ledger."""
    try:
        metadata = orjson.loads(row.metadata) if row.metadata else {}
        data = orjson.dumps({**metadata, CREATED: row.created_ms})
    except (ValueError, TypeError):
        # Another program wrote the row. Consumers skip an entry that is not an event, and count it.
        data = row.metadata.encode()
    return [
        *("event_type", row.event_type, "event_uuid", row.event_uuid),
        *("outbox_id", str(row.id), "payload", row.payload),
        *("metadata", data, "ledger", ledger),
    ]


def created(flat: Sequence[bytes]) -> int | None:
    """Return when the event of an entry was sent, in ms since 1970; None if the entry does not say."""
    named = {flat[i]: flat[i + 1] for i in range(0, len(flat) - 1, 2)}
    try:
        sent_at = orjson.loads(named[b"metadata"])[CREATED]
    except (ValueError, KeyError, TypeError):
        return None
    return sent_at if type(sent_at) is int else None


def decode(stream: str, entry_id: str, flat: Sequence[bytes]) -> StreamEvent:
    """Return the event of an entry. Raises `ValueError` if another program wrote the entry."""
    named = {flat[i]: flat[i + 1] for i in range(0, len(flat) - 1, 2)}
    try:
        number = named[b"outbox_id"].decode()
        payload, metadata = orjson.loads(named[b"payload"]), orjson.loads(named[b"metadata"])
        kind, uuid = named[b"event_type"].decode(), named[b"event_uuid"].decode()
        ledger = named.get(b"ledger", b"0").decode()
    except KeyError as error:
        raise ValueError(f"the entry {entry_id} has no field {error.args[0].decode()!r}") from None
    numbers = is_number(number) and ledger.isascii() and ledger.isdigit() and len(ledger) < _DIGITS
    if not (numbers and isinstance(payload, dict) and isinstance(metadata, dict)):
        raise ValueError(f"the entry {entry_id} is not an event")
    return StreamEvent(stream, entry_id, kind, int(number), uuid, payload, metadata, int(ledger))
