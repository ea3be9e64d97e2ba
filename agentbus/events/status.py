"""How far everything is, as the ledger knows it: what waits, what was published, who holds which lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.events import databases
from agentbus.events.databases import now_ms
from agentbus.events.leases import READER, RELAY

if TYPE_CHECKING:
    from agentbus.events.ledger import Ledger

_MOST = 100_000
_PAGE_MS, _WARN_MS = 300_000, 60_000
_WARN_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """A role on a stream: the relay's, a consumer's by its name, or a reader's such as an archive's.

    `owner` is empty while nobody holds it, `expires` the seconds that are left of it, below 0 where it ran
    out. `lag` is how many events are still to be published (the relay) or to be passed (a consumer), where
    100,000 means that or more; `lag_ms` how long ago the oldest of them was sent, 0 if there is none;
    `parked` how many a consumer has put aside.
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
        """The name of a reader such as an archive; None where the role is a consumer's or the relay's."""
        return self.role[len(READER) :] if self.role.startswith(READER) else None

    @property
    def alert(self) -> str | None:
        """What an operator is to be told: `page`, `warn`, or None while all is well.

        A page: events wait that nobody acts on, or the oldest for 5 minutes. A warning: the oldest waits
        for a minute, or 10,000 wait, or some were put aside. What a reader has not read makes a warning at
        most: it holds no lease, and nobody waits for it before the stream is full.
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
    """A stream: how many events wait, how old the oldest of them is in seconds, how many are published.

    Those that all consumers and readers have passed are not counted, once the relay has removed them.
    """

    stream: str
    waiting: int
    published: int
    oldest: float | None
    leases: tuple[LeaseStanding, ...]

    @property
    def roles(self) -> tuple[LeaseStanding, ...]:
        """The leases, and the relay's before one has ever run: events wait for it."""
        if not self.waiting or any(lease.role == RELAY for lease in self.leases):
            return self.leases
        waits = (min(_MOST, self.waiting), round((self.oldest or 0.0) * 1000))
        return (LeaseStanding(self.stream, RELAY, "", 0, None, "0-0", *waits, 0), *self.leases)


# The public name.
Standing = StreamStanding


def standing(ledger: Ledger) -> list[StreamStanding]:
    """Return how far each stream is, by name. Raises `BackendUnavailable`, `ConfigError`."""
    box, lease = ledger.tables.outbox, ledger.tables.lease
    with (
        databases.told(ledger.engine, "it was asked how far it is"),
        ledger.engine.connect() as connection,
    ):
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
    return [
        _stream(name, counted.get(name), tuple(held.get(name, ())), now)
        for name in sorted({*counted, *held})
    ]


def _stream(name: str, row: Any, leases: tuple[LeaseStanding, ...], now: int) -> StreamStanding:
    if row is None:
        return StreamStanding(name, 0, 0, None, leases)
    oldest = None if row.oldest is None else max(0, now - row.oldest) / 1000
    return StreamStanding(name, row.waiting, row.published, oldest, leases)


def lag(ledger: Ledger, stream: str, role: str) -> tuple[int, int]:
    """Return how many events a role is behind, at most 100,000, and how many ms ago the oldest was sent."""
    lease = ledger.tables.lease
    with (
        databases.told(ledger.engine, "it was asked how far it is"),
        ledger.engine.connect() as connection,
    ):
        row = connection.execute(
            sa.select(lease, now_ms().label("now")).where(
                lease.c.stream == stream, lease.c.role == role
            )
        ).first()
        return (0, 0) if row is None else _behind(connection, ledger, row, row.now)


def _lease(connection: sa.Connection, ledger: Ledger, row: Any, now: int) -> LeaseStanding:
    aside = ledger.tables.parked
    mine = (aside.c.consumer == row.role, aside.c.stream == row.stream)
    return LeaseStanding(
        *(row.stream, row.role, row.owner, row.token),
        (row.expires_at_ms - now) / 1000 if row.owner else None,
        f"{row.checkpoint_ms}-{row.checkpoint_seq}",
        *_behind(connection, ledger, row, now),
        0 if row.role == RELAY else _count(connection, aside, *mine),
    )


def _behind(connection: sa.Connection, ledger: Ledger, row: Any, now: int) -> tuple[int, int]:
    box = ledger.tables.outbox
    mine = box.c.stream == row.stream
    waits = [mine, box.c.position_ms.is_(None)]
    there = [mine, box.c.position_ms.is_not(None)]
    there.append(
        sa.tuple_(box.c.position_ms, box.c.position_seq) > (row.checkpoint_ms, row.checkpoint_seq)
    )
    number = _count(connection, box, *waits)
    sent = sa.select(box.c.created_ms).limit(1)
    first = None
    if row.role != RELAY:
        number = min(_MOST, number + _count(connection, box, *there))
        order = (box.c.position_ms, box.c.position_seq)
        first = connection.execute(sent.where(*there).order_by(*order)).scalar()
    if first is None:
        first = connection.execute(sent.where(*waits).order_by(box.c.id)).scalar()
    return number, 0 if first is None else max(0, now - first)


def _count(connection: sa.Connection, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
    """Count rows, but no more than that matter: a backlog must not make it slow to be looked at."""
    some = sa.select(sa.literal(1)).select_from(table).where(*where).limit(_MOST).subquery()
    found: int = connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()
    return found
