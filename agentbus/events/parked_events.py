"""Events that a consumer has put aside: looked at, tried again, dropped."""

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
    """An event that a consumer put aside after so many attempts; `parked_at` is in s since 1970.

    `waits` tells that it is to be tried again, once, by the consumer when it next looks.
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
    """Return what is put aside, the oldest first: by a consumer or by all, all or those of these ids.

    Raises `NotFound` if one of `ids` is not there, `BackendUnavailable`.
    """
    made = ledger.tables.parked
    chosen = sa.select(made).where(*_which(made, consumer, ids), made.c.id > after)
    if not ids:
        chosen = chosen.limit(limit)
    with ledger.committing("parked events were looked at") as connection:
        found = [_of(row) for row in connection.execute(chosen.order_by(made.c.id))]
    _all_there(ids, [one.id for one in found])
    return found


def retry(ledger: Ledger, consumer: str | None = None, ids: Sequence[int] = ()) -> int:
    """Have events tried again, once, by the consumers that put them aside; returns how many.

    A consumer that runs does so within seconds, and again only when it is asked to again. Raises
    `NotFound` if one of `ids` is not there: then none is tried. Raises `BackendUnavailable`.
    """
    made = ledger.tables.parked
    wish = sa.update(made).values(retry_ms=now_ms())
    return _each(ledger, wish.where(*_which(made, consumer, ids)), ids)


def drop(ledger: Ledger, consumer: str | None = None, ids: Sequence[int] = ()) -> int:
    """Remove events for good; returns how many. They count as processed. Raises as `retry`."""
    made = ledger.tables.parked
    return _each(ledger, sa.delete(made).where(*_which(made, consumer, ids)), ids)


def due(connection: sa.Connection, ledger: Ledger, stream: str, consumer: str) -> list[Parked]:
    """Return what a consumer is to try again."""
    made = ledger.tables.parked
    chosen = sa.select(made).where(
        made.c.consumer == consumer, made.c.stream == stream, made.c.retry_ms.is_not(None)
    )
    return [_of(row) for row in connection.execute(chosen.order_by(made.c.id))]


def _each(ledger: Ledger, what: sa.Update | sa.Delete, ids: Sequence[int]) -> int:
    made = ledger.tables.parked
    with ledger.committing("parked events were changed") as connection:
        found = connection.execute(what.returning(made.c.id)).scalars().all()
        _all_there(ids, found)
    return len(found)


def _all_there(ids: Sequence[int], found: Sequence[int]) -> None:
    missing = sorted(set(ids) - set(found))
    if missing:
        raise NotFound(
            f"no parked event has the id {', '.join(map(str, missing))}",
            hint="parked(ledger) returns those there are",
            shell_hint="see 'agentbus events parked list'",
        )


def _which(made: sa.Table, consumer: str | None, ids: Sequence[int]) -> list[Any]:
    which: list[Any] = [] if consumer is None else [made.c.consumer == consumer]
    return [*which, made.c.id.in_(ids)] if ids else which


def _of(row: Any) -> Parked:
    event = StreamEvent(**orjson.loads(row.event))
    return Parked(
        *(row.id, row.consumer, event, row.error, row.attempts),
        row.parked_at_ms / 1000,
        row.retry_ms is not None,
    )
