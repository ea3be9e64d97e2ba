"""List, retry and drop parked events, which a consumer gave up on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import sqlalchemy as sa

from agentbus.core.errors import NotFound
from agentbus.events.databases import now_ms
from agentbus.events.event import StreamEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Parked:
    """An event that a consumer gave up after `attempts` attempts, at the unix time `parked_at`.

    `waits` is true if a retry was requested that the consumer has not begun yet.
    """

    id: int
    consumer: str
    event: StreamEvent
    error: str
    attempts: int
    parked_at: float
    waits: bool


def parked(
    ledger: Ledger,
    consumer: str | None = None,
    ids: Sequence[int] = (),
    *,
    after: int = 0,
    limit: int = 100,
) -> list[Parked]:
    """Return parked events, oldest first: of one consumer or all, with these ids or any.

    Raises `NotFound` if an id does not exist, `BackendUnavailable`.
    """
    table = ledger.tables.parked
    chosen = sa.select(table).where(*_which(table, consumer, ids), table.c.id > after)
    if not ids:
        chosen = chosen.limit(limit)
    with ledger.reading("parked events were read") as connection:
        events = [_of(row) for row in connection.execute(chosen.order_by(table.c.id))]
    _all_there(ids, [event.id for event in events])
    return events


def retry(ledger: Ledger, consumer: str | None = None, ids: Sequence[int] = ()) -> int:
    """Request one retry of parked events; returns their number.

    Running consumers retry them within seconds. An event stays parked if it still does not fit its
    schema, or is too old to know whether it was handled. Raises `NotFound`, and changes nothing, if
    an id does not exist; `BackendUnavailable`.
    """
    table = ledger.tables.parked
    wish = sa.update(table).values(retry_ms=now_ms())
    return _each(ledger, wish.where(*_which(table, consumer, ids)), ids)


def drop(ledger: Ledger, consumer: str | None = None, ids: Sequence[int] = ()) -> int:
    """Delete parked events, which then count as processed, and return their number, as `retry`."""
    table = ledger.tables.parked
    return _each(ledger, sa.delete(table).where(*_which(table, consumer, ids)), ids)


def due(connection: sa.Connection, ledger: Ledger, stream: str, consumer: str) -> list[Parked]:
    """Return the parked events that a consumer should retry."""
    table = ledger.tables.parked
    chosen = sa.select(table).where(
        table.c.consumer == consumer, table.c.stream == stream, table.c.retry_ms.is_not(None)
    )
    return [_of(row) for row in connection.execute(chosen.order_by(table.c.id))]


def _each(ledger: Ledger, what: sa.Update | sa.Delete, ids: Sequence[int]) -> int:
    table = ledger.tables.parked
    with ledger.committing("parked events were changed") as connection:
        changed_ids = connection.execute(what.returning(table.c.id)).scalars().all()
        _all_there(ids, changed_ids)
    return len(changed_ids)


def _all_there(ids: Sequence[int], existing: Sequence[int]) -> None:
    missing = sorted(set(ids) - set(existing))
    if missing:
        raise NotFound(
            f"no parked event has the id {', '.join(map(str, missing))}",
            hint="parked(ledger) returns those there are",
            shell_hint="see 'agentbus events parked list'",
        )


def _which(table: sa.Table, consumer: str | None, ids: Sequence[int]) -> list[Any]:
    which: list[Any] = [] if consumer is None else [table.c.consumer == consumer]
    return [*which, table.c.id.in_(ids)] if ids else which


def _of(row: Any) -> Parked:
    return Parked(
        *(row.id, row.consumer, _event(row), row.error, row.attempts),
        row.parked_at_ms / 1000,
        row.retry_ms is not None,
    )


def _event(row: Any) -> StreamEvent:
    """Return the event of a parked row; an empty event if another program changed the row."""
    try:
        event = StreamEvent(**orjson.loads(row.event))
    except (ValueError, TypeError):
        event = None
    if event is not None and _is_sound(event):
        return event
    return StreamEvent(row.stream, row.position, "?", 0, row.event_uuid, {}, {})


def _is_sound(event: StreamEvent) -> bool:
    texts = (event.stream_name, event.redis_id, event.event_type, event.event_uuid)
    return (
        all(isinstance(text, str) for text in texts)
        and type(event.outbox_id) is int
        and isinstance(event.payload, dict)
        and isinstance(event.metadata, dict | None)
    )
