"""An event as a handler gets it, and how it lies in a stream's entry."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.stream import is_number, position

if TYPE_CHECKING:
    from collections.abc import Sequence

# The time of `send_event` by the database's clock, in ms, as it stands in an event's metadata.
CREATED = "__creation_timestamp_ms__"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event that was published. `redis_id` is its entry's id, `outbox_id` its row's in the outbox."""

    stream_name: str
    redis_id: str
    event_type: str
    outbox_id: int
    event_uuid: str
    payload: dict[str, Any]
    metadata: dict[str, Any] | None

    @property
    def position(self) -> tuple[int, int]:
        """The id of its entry as two numbers."""
        return position(self.redis_id)


def words(row: Any) -> list[str | bytes]:
    """Return the fields and values of the entry that a row of the outbox becomes."""
    metadata = orjson.loads(row.metadata) if row.metadata else {}
    metadata[CREATED] = row.created_ms
    return [
        *("event_type", row.event_type, "event_uuid", row.event_uuid),
        *("outbox_id", str(row.id), "payload", row.payload),
        *("metadata", orjson.dumps(metadata)),
    ]


def decode(stream: str, entry_id: str, flat: Sequence[bytes]) -> StreamEvent:
    """Return an entry as an event. Raises `ValueError` if another program wrote it."""
    named = {flat[i]: flat[i + 1] for i in range(0, len(flat) - 1, 2)}
    try:
        number = named[b"outbox_id"].decode()
        payload, metadata = orjson.loads(named[b"payload"]), orjson.loads(named[b"metadata"])
        kind, uuid = named[b"event_type"].decode(), named[b"event_uuid"].decode()
    except KeyError as error:
        raise ValueError(f"the entry {entry_id} has no field {error.args[0].decode()!r}") from None
    if not (is_number(number) and isinstance(payload, dict) and isinstance(metadata, dict)):
        raise ValueError(f"the entry {entry_id} holds no event")
    return StreamEvent(stream, entry_id, kind, int(number), uuid, payload, metadata)


def as_json(event: StreamEvent) -> str:
    """Return an event as JSON, with all its fields."""
    return orjson.dumps(asdict(event)).decode()
