"""The status of streams in the ledger: waiting and published events, leases, lag, alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.events.databases import now_ms
from agentbus.events.leases import READER, RELAY
from agentbus.events.tables import entry_id

if TYPE_CHECKING:
    from agentbus.events.ledger import Ledger
    from agentbus.events.stream_reader import StreamReader

_MOST = 100_000
_PAGE_MS, _WARN_MS = 300_000, 60_000
_WARN_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """The lease of a role on a stream: the relay, a consumer, or a reader such as an archive.

    `owner` is empty while the lease is free; `expires` is in seconds, below 0 once it has expired. `lag`
    counts the events of this ledger that the relay has to publish or the consumer has to pass, at most
    100,000; `lag_ms` is the age of the oldest of them, 0 if there is none; `parked` counts the consumer's
    parked events.
    """

    stream: str
    role: str
    owner: str
    token: int
    expires: float | None
    checkpoint: str
    lag: int
    lag_ms: int
    parked: int

    @property
    def reader(self) -> str | None:
        """The name of a reader such as an archive; None for a consumer or the relay."""
        return self.role[len(READER) :] if self.role.startswith(READER) else None

    @property
    def alert(self) -> str | None:
        """The urgency for an operator: `page`, `warn`, or None.

        `page`: events wait without an active process, or the oldest for 5 minutes. `warn`: the
        oldest waits for a minute, or more than 10,000 wait, or some are parked. A reader causes at
        most a warning: it holds no lease, and delays no other role until the stream is full.
        """
        if (
            self.reader is None
            and self.lag
            and (self.expires is None or self.expires <= 0 or self.lag_ms > _PAGE_MS)
        ):
            return "page"
        if self.lag_ms > _WARN_MS or self.lag > _WARN_EVENTS or self.parked:
            return "warn"
        return None


@dataclass(frozen=True, slots=True)
class StreamStanding:
    """A stream: its numbers of waiting and published events, and the age in seconds of the oldest.

    Events that all consumers and readers have passed still count until the relay deletes them.
    """

    stream: str
    waiting: int
    published: int
    oldest: float | None
    leases: tuple[LeaseStanding, ...]

    @property
    def roles(self) -> tuple[LeaseStanding, ...]:
        """The leases, plus one for the relay if events wait and no relay has ever run."""
        if not self.waiting or any(lease.role == RELAY for lease in self.leases):
            return self.leases
        waits = (min(_MOST, self.waiting), round((self.oldest or 0.0) * 1000))
        return (LeaseStanding(self.stream, RELAY, "", 0, None, "0-0", *waits, 0), *self.leases)


# Public name of the class.
Standing = StreamStanding


def standing(ledger: Ledger) -> list[StreamStanding]:
    """Return the status of each stream, by name. Raises `BackendUnavailable`, `ConfigError`."""
    box, lease = ledger.tables.outbox, ledger.tables.lease
    with ledger.reading("the status was read") as connection:
        now = connection.execute(sa.select(now_ms())).scalar_one()
        waits = box.c.position_ms.is_(None)
        counted = {
            row.stream: row
            for row in connection.execute(
                sa.select(
                    box.c.stream,
                    sa.func.count().filter(waits).label("waiting"),
                    sa.func.count().filter(~waits).label("published"),
                    sa.func.min(box.c.created_ms).filter(waits).label("oldest"),
                ).group_by(box.c.stream)
            )
        }
        held: dict[str, list[LeaseStanding]] = {}
        chosen = sa.select(lease).where(lease.c.stream != "")
        for row in connection.execute(chosen.order_by(lease.c.stream, lease.c.role)):
            held.setdefault(row.stream, []).append(_lease(connection, ledger, row, now))
    standings = []
    for name in sorted({*counted, *held}):
        count, leases = counted.get(name), tuple(held.get(name, ()))
        if count is None:
            standings.append(StreamStanding(name, 0, 0, None, leases))
            continue
        oldest = None if count.oldest is None else max(0, now - count.oldest) / 1000
        standings.append(StreamStanding(name, count.waiting, count.published, oldest, leases))
    return standings


def lag(
    ledger: Ledger, stream: str, role: str, reader: StreamReader | None = None
) -> tuple[int, int]:
    """Return the lag of a role as in `LeaseStanding`: up to 100,000 events, and milliseconds.

    With the `reader` of a consumer, the events that other ledgers published count, too.
    """
    tables = ledger.tables
    wanted = sa.select(tables.lease, now_ms().label("now")).where(*tables.role(stream, role))
    with ledger.reading("the lag was read") as connection:
        row = connection.execute(wanted).first()
        number, age = (0, 0) if row is None else _behind(connection, ledger, row, row.now)
    if row is None or reader is None:
        return number, age
    ahead, first = reader.behind((row.checkpoint_ms, row.checkpoint_seq))
    return max(number, ahead), age if first is None else max(age, row.now - first)


def parked(ledger: Ledger, stream: str, role: str) -> tuple[int, str]:
    """Return the number of a consumer's parked events, up to 100,000, and the error of the newest."""
    table = ledger.tables.parked
    own = (table.c.consumer == role, table.c.stream == stream)
    newest = sa.select(table.c.error).where(*own).order_by(table.c.id.desc()).limit(1)
    with ledger.reading("the parked events were counted") as connection:
        number = _count(connection, table, *own)
        error = connection.execute(newest).scalar() if number else None
    return number, error or ""


def _lease(connection: sa.Connection, ledger: Ledger, row: Any, now: int) -> LeaseStanding:
    parked = ledger.tables.parked
    own = (parked.c.consumer == row.role, parked.c.stream == row.stream)
    return LeaseStanding(
        *(row.stream, row.role, row.owner, row.token),
        (row.expires_at_ms - now) / 1000 if row.owner else None,
        entry_id((row.checkpoint_ms, row.checkpoint_seq)),
        *_behind(connection, ledger, row, now),
        0 if row.role == RELAY else _count(connection, parked, *own),
    )


def _behind(connection: sa.Connection, ledger: Ledger, row: Any, now: int) -> tuple[int, int]:
    tables, box = ledger.tables, ledger.tables.outbox
    waits = tables.waiting(row.stream)
    ahead = [
        *tables.published(row.stream),
        tables.position > (row.checkpoint_ms, row.checkpoint_seq),
    ]
    number = _count(connection, box, *waits)
    sent = sa.select(box.c.created_ms).limit(1)
    first = None
    if row.role != RELAY:
        number = min(_MOST, number + _count(connection, box, *ahead))
        order = (box.c.position_ms, box.c.position_seq)
        first = connection.execute(sent.where(*ahead).order_by(*order)).scalar()
    if first is None:
        first = connection.execute(sent.where(*waits).order_by(box.c.id)).scalar()
    return number, 0 if first is None else max(0, now - first)


def _count(connection: sa.Connection, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
    """Count rows up to a limit, so that a backlog does not make the status slow."""
    some = sa.select(sa.literal(1)).select_from(table).where(*where).limit(_MOST).subquery()
    number: int = connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()
    return number
