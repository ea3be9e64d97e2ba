"""The outbox as a relay sees it: what waits, what was published, and what every consumer has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from agentbus.events import databases
from agentbus.events.databases import now_ms
from agentbus.events.leases import READER, RELAY, mine, stale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.leases import HeldLease
    from agentbus.events.tables import Tables

Position = tuple[int, int]
_PURGE_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class StreamMarks:
    """What the ledger knows of a stream.

    `passed` is where the last of its consumers and readers is, None where it has no consumer; `floor` the
    highest id that the ledger holds anywhere; `low` and `top` the first and the last row that is published
    and not passed.
    """

    passed: Position | None
    floor: Position
    low: Any
    top: Any


def streams(connection: sa.Connection, made: Tables) -> list[str]:
    """Return the streams for which rows wait, and those that have had a relay."""
    box, lease = made.outbox, made.lease
    # One look into the index for each stream, however many rows wait.
    first = sa.select(sa.func.min(box.c.stream).label("stream")).where(box.c.position_ms.is_(None))
    found = first.cte("found", recursive=True)
    following = (
        sa.select(sa.func.min(box.c.stream))
        .where(box.c.position_ms.is_(None), box.c.stream > found.c.stream)
        .scalar_subquery()
    )
    found = found.union_all(sa.select(following).where(found.c.stream.is_not(None)))
    waiting = sa.select(found.c.stream).where(found.c.stream.is_not(None))
    known = sa.select(lease.c.stream).where(lease.c.role == RELAY)
    return sorted(connection.execute(sa.union(waiting, known)).scalars())


def waiting(connection: sa.Connection, made: Tables, stream: str, count: int) -> list[sa.Row[Any]]:
    """Return the first rows that are not published, in an order that keeps cause before effect.

    Whoever saw a commit and sent an event then has a higher id than what was committed before, and is
    seen by no snapshot that does not hold that, too. Rows of transactions that knew nothing of each other
    stand in any order. The order of transaction ids would not do: an older transaction may wait for a
    younger one, and tell of what came of it.
    """
    box = made.outbox
    return list(
        connection.execute(
            sa.select(box)
            .where(box.c.stream == stream, box.c.position_ms.is_(None))
            .order_by(box.c.id)
            .limit(count)
        )
    )


def mark(
    connection: sa.Connection, made: Tables, held: HeldLease, found: Sequence[tuple[int, Position]]
) -> None:
    """Enter under which ids rows were published. Raises `StaleLease`."""
    box = made.outbox
    fence(connection, made, held)
    values: dict[str, Any] = {"published_at_ms": now_ms(), "epoch": held.token}
    if connection.dialect.name == databases.POSTGRESQL:
        columns = [
            sa.bindparam(None, [number for number, _ in found], type_=ARRAY(sa.BigInteger)),
            sa.bindparam(None, [at[0] for _, at in found], type_=ARRAY(sa.BigInteger)),
            sa.bindparam(None, [at[1] for _, at in found], type_=ARRAY(sa.BigInteger)),
        ]
        row = sa.func.unnest(*columns).table_valued("id", "ms", "seq").render_derived("row")
        connection.execute(
            sa.update(box)
            .where(box.c.id == row.c.id, box.c.position_ms.is_(None))
            .values(position_ms=row.c.ms, position_seq=row.c.seq, **values)
        )
        return
    connection.execute(
        sa.update(box)
        .where(box.c.id == sa.bindparam("row"), box.c.position_ms.is_(None))
        .values(position_ms=sa.bindparam("ms"), position_seq=sa.bindparam("seq"), **values),
        [{"row": number, "ms": at[0], "seq": at[1]} for number, at in found],
    )


def unmark(connection: sa.Connection, made: Tables, held: HeldLease, beyond: Position) -> int:
    """Have rows published again that lie beyond a position; returns how many. Raises `StaleLease`."""
    box = made.outbox
    fence(connection, made, held)
    return connection.execute(
        sa.update(box)
        .where(box.c.stream == held.stream, _at(box) > beyond)
        .values(position_ms=None, position_seq=None)
    ).rowcount


def marks(connection: sa.Connection, made: Tables, stream: str) -> StreamMarks:
    """Return what the ledger knows of a stream."""
    box, lease = made.outbox, made.lease
    checkpoints = [
        (row.role, (row.checkpoint_ms, row.checkpoint_seq))
        for row in connection.execute(sa.select(lease).where(lease.c.stream == stream))
    ]
    others = [(role, at) for role, at in checkpoints if role != RELAY]
    # Before there is a consumer, everything is kept, whoever else has read it.
    passed = min(at for _, at in others) if any(_consumes(role) for role, _ in others) else None
    floor = max((at for _, at in checkpoints), default=(0, 0))
    rows = (
        sa.select(box.c.id, box.c.position_ms, box.c.position_seq)
        .where(
            box.c.stream == stream, box.c.position_ms.is_not(None), _at(box) > (passed or (0, 0))
        )
        .limit(1)
    )
    low = connection.execute(rows.order_by(box.c.position_ms, box.c.position_seq)).first()
    last = rows.order_by(box.c.position_ms.desc(), box.c.position_seq.desc())
    top = connection.execute(last).first() if low is not None else None
    if top is None:
        # There is none, or another relay has just found that all of it is lost.
        low = None
    else:
        floor = max(floor, (top.position_ms, top.position_seq))
    return StreamMarks(passed, floor, low, top)


def published(
    connection: sa.Connection,
    made: Tables,
    stream: str,
    before: Position,
    after: Position,
    count: int,
) -> list[sa.Row[Any]]:
    """Return rows that are published between two positions, the last first."""
    box = made.outbox
    return list(
        connection.execute(
            sa.select(box.c.id, box.c.position_ms, box.c.position_seq)
            .where(box.c.stream == stream, _at(box) < before, _at(box) > after)
            .order_by(box.c.position_ms.desc(), box.c.position_seq.desc())
            .limit(count)
        )
    )


def purge(connection: sa.Connection, made: Tables, held: HeldLease, passed: Position) -> int:
    """Delete up to 1,000 rows that all consumers have passed; returns how many. Raises `StaleLease`.

    The relay's own checkpoint remembers up to where rows are gone.
    """
    box, lease = made.outbox, made.lease
    rows = connection.execute(
        sa.select(box.c.id, box.c.position_ms, box.c.position_seq)
        .where(box.c.stream == held.stream, box.c.position_ms.is_not(None), _at(box) <= passed)
        .order_by(box.c.position_ms, box.c.position_seq)
        .limit(_PURGE_AT_ONCE)
    ).all()
    if not rows:
        return 0
    last = rows[-1]
    done = connection.execute(
        sa.update(lease)
        .where(*mine(made, held))
        .values(
            checkpoint_ms=last.position_ms,
            checkpoint_seq=last.position_seq,
            checkpoint_outbox_id=last.id,
        )
    )
    if done.rowcount != 1:
        raise stale(held)
    connection.execute(sa.delete(box).where(box.c.id.in_([row.id for row in rows])))
    return len(rows)


def purge_processed(
    connection: sa.Connection, made: Tables, stream: str, passed: Position, seconds: float
) -> int:
    """Delete up to 1,000 rows by which duplicates are known, and that no duplicate can need any more.

    They are older than so many seconds, all consumers have passed them, and the outbox holds no row that
    could be published again.
    """
    done, box, lease = made.processed, made.outbox, made.lease
    kept = sa.exists().where(box.c.id == done.c.outbox_id)
    old = (
        sa.select(done.c.consumer, done.c.event_uuid)
        .where(
            done.c.at_ms < now_ms() - round(seconds * 1000),
            done.c.stream == stream,
            sa.tuple_(done.c.position_ms, done.c.position_seq) <= passed,
            ~kept,
        )
        .order_by(done.c.at_ms)
        .limit(_PURGE_AT_ONCE)
    )
    gone = connection.execute(
        sa.delete(done)
        .where(sa.tuple_(done.c.consumer, done.c.event_uuid).in_(old))
        .returning(done.c.outbox_id)
    )
    numbers = gone.scalars().all()
    if numbers:
        connection.execute(
            sa.update(lease)
            .where(
                *(lease.c.stream == stream, lease.c.role == RELAY),
                lease.c.horizon_outbox_id < max(numbers),
            )
            .values(horizon_outbox_id=max(numbers))
        )
    return len(numbers)


def horizon(connection: sa.Connection, made: Tables, stream: str) -> int:
    """Return the highest row up to which it may be forgotten that an event was processed."""
    lease = made.lease
    found: int | None = connection.execute(
        sa.select(lease.c.horizon_outbox_id).where(lease.c.stream == stream, lease.c.role == RELAY)
    ).scalar()
    return found or 0


def knows(connection: sa.Connection, made: Tables, consumer: str, event_uuid: str) -> bool:
    """Tell whether it is known if a consumer has processed an event: a row of either table says so.

    The outbox keeps a row until every consumer has passed it.
    """
    box, done = made.outbox, made.processed
    kept = sa.exists().where(box.c.event_uuid == event_uuid)
    entered = sa.exists().where(done.c.consumer == consumer, done.c.event_uuid == event_uuid)
    return bool(connection.execute(sa.select(sa.or_(kept, entered))).scalar_one())


def _consumes(role: str) -> bool:
    return not role.startswith(READER)


def _at(box: sa.Table) -> Any:
    return sa.tuple_(box.c.position_ms, box.c.position_seq)


def fence(connection: sa.Connection, made: Tables, held: HeldLease) -> None:
    """Raise `StaleLease` unless a lease is still the one that was taken; it stays so until the commit."""
    # Locked, so that nobody takes it over before this transaction's end.
    found = connection.execute(
        sa.select(made.lease.c.token).where(*mine(made, held)).with_for_update()
    ).first()
    if found is None:
        raise stale(held)
