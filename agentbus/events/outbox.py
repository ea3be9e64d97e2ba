"""The relay's queries on the outbox: waiting and published rows, and rows no longer needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from agentbus.events import databases
from agentbus.events.databases import now_ms
from agentbus.events.leases import ELSEWHERE, READER, RELAY, mine, stale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.leases import HeldLease
    from agentbus.events.tables import Position, Tables

_PURGE_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class StreamMarks:
    """The positions of a stream in the ledger.

    `passed` is the checkpoint of the slowest consumer or reader, None if it has no consumer;
    `floor` is the highest position anywhere in the ledger; `low` and `top` are the first and last
    rows that are published and not passed.
    """

    passed: Position | None
    floor: Position
    low: Any
    top: Any


def streams(connection: sa.Connection, tables: Tables) -> list[str]:
    """Return the streams with waiting rows, and those that have had a relay."""
    box, lease = tables.outbox, tables.lease
    # A recursive query reads one index entry for each stream, however many rows wait.
    first = sa.select(sa.func.min(box.c.stream).label("stream")).where(box.c.position_ms.is_(None))
    heads = first.cte("found", recursive=True)
    following = (
        sa.select(sa.func.min(box.c.stream))
        .where(box.c.position_ms.is_(None), box.c.stream > heads.c.stream)
        .scalar_subquery()
    )
    heads = heads.union_all(sa.select(following).where(heads.c.stream.is_not(None)))
    waiting = sa.select(heads.c.stream).where(heads.c.stream.is_not(None))
    known = sa.select(lease.c.stream).where(lease.c.role == RELAY)
    return sorted(connection.execute(sa.union(waiting, known)).scalars())


def waiting(
    connection: sa.Connection, tables: Tables, stream: str, count: int
) -> list[sa.Row[Any]]:
    """Return the first waiting rows, ordered so that a cause precedes its effect.

    If a transaction sees a committed row and then sends an event, the event's row has a higher id,
    and every snapshot with the event's row contains the committed row. Rows of concurrent
    transactions are in any order. Transaction ids would give the wrong order: an older transaction
    may wait for a younger one, and send an event about its result.
    """
    rows = sa.select(tables.outbox).where(*tables.waiting(stream))
    return list(connection.execute(rows.order_by(tables.outbox.c.id).limit(count)))


def mark(
    connection: sa.Connection,
    tables: Tables,
    held: HeldLease,
    positions: Sequence[tuple[int, Position]],
) -> None:
    """Record the positions at which rows were published. Raises `StaleLease`."""
    box = tables.outbox
    fence(connection, tables, held)
    values: dict[str, Any] = {"published_at_ms": now_ms(), "epoch": held.token}
    if connection.dialect.name == databases.POSTGRESQL:
        columns = [
            sa.bindparam(None, [number for number, _ in positions], type_=ARRAY(sa.BigInteger)),
            sa.bindparam(None, [at[0] for _, at in positions], type_=ARRAY(sa.BigInteger)),
            sa.bindparam(None, [at[1] for _, at in positions], type_=ARRAY(sa.BigInteger)),
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
        [{"row": number, "ms": at[0], "seq": at[1]} for number, at in positions],
    )


def unmark(connection: sa.Connection, tables: Tables, held: HeldLease, beyond: Position) -> int:
    """Mark rows after a position as waiting again; returns their number. Raises `StaleLease`."""
    fence(connection, tables, held)
    lost = sa.update(tables.outbox).where(*tables.published(held.stream), tables.position > beyond)
    return connection.execute(lost.values(position_ms=None, position_seq=None)).rowcount


def marks(connection: sa.Connection, tables: Tables, stream: str) -> StreamMarks:
    """Return the positions of a stream in the ledger."""
    lease = tables.lease
    rows = connection.execute(sa.select(lease).where(lease.c.stream == stream))
    checkpoints = {row.role: (row.checkpoint_ms, row.checkpoint_seq) for row in rows}
    floor = max(checkpoints.values(), default=(0, 0))
    checkpoints.pop(RELAY, None)
    # A stream without a consumer keeps everything, even if readers have passed it.
    consumed = any(
        role.startswith(ELSEWHERE) or not role.startswith(READER) for role in checkpoints
    )
    passed = min(checkpoints.values()) if consumed else None
    last = published(connection, tables, stream, passed or (0, 0), count=1)
    if not last:
        return StreamMarks(passed, floor, None, None)
    first = published(connection, tables, stream, passed or (0, 0), count=1, oldest_first=True)
    if not first:
        # Another relay has just found that all of the stream was lost.
        return StreamMarks(passed, floor, None, None)
    return StreamMarks(
        passed, max(floor, (last[0].position_ms, last[0].position_seq)), first[0], last[0]
    )


def published(
    connection: sa.Connection,
    tables: Tables,
    stream: str,
    after: Position,
    before: Position | None = None,
    *,
    count: int,
    oldest_first: bool = False,
) -> list[sa.Row[Any]]:
    """Return rows published between two positions, newest first unless `oldest_first`."""
    box = tables.outbox
    order: list[Any] = [box.c.position_ms, box.c.position_seq]
    rows = sa.select(box.c.id, *order).where(*tables.published(stream), tables.position > after)
    if before is not None:
        rows = rows.where(tables.position < before)
    if not oldest_first:
        order = [each.desc() for each in order]
    return list(connection.execute(rows.order_by(*order).limit(count)))


def purge(connection: sa.Connection, tables: Tables, held: HeldLease, passed: Position) -> int:
    """Delete up to 1,000 rows that all consumers have passed; returns their number.

    The relay's checkpoint records the position up to which rows were deleted. Raises `StaleLease`.
    """
    box = tables.outbox
    rows = connection.execute(
        sa.select(box.c.id, box.c.position_ms, box.c.position_seq)
        .where(*tables.published(held.stream), tables.position <= passed)
        .order_by(box.c.position_ms, box.c.position_seq)
        .limit(_PURGE_AT_ONCE)
    ).all()
    if not rows:
        return 0
    last = rows[-1]
    done = connection.execute(
        sa.update(tables.lease)
        .where(*mine(tables, held))
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
    connection: sa.Connection,
    tables: Tables,
    stream: str,
    passed: Position,
    seconds: float,
    *,
    count: int = _PURGE_AT_ONCE,
) -> int:
    """Delete up to `count` old rows of processed events; returns their number.

    These rows are older than `seconds`, all consumers have passed them, and their events are no
    longer in the outbox, so that they cannot be published again.
    """
    done, box, lease = tables.processed, tables.outbox, tables.lease
    kept = sa.exists().where(box.c.event_uuid == done.c.event_uuid)
    old = (
        sa.select(done.c.consumer, done.c.event_uuid)
        .where(
            done.c.at_ms < now_ms() - round(seconds * 1000),
            done.c.stream == stream,
            sa.tuple_(done.c.position_ms, done.c.position_seq) <= passed,
            ~kept,
        )
        .order_by(done.c.at_ms)
        .limit(count)
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
            .where(*tables.role(stream, RELAY), lease.c.horizon_outbox_id < max(numbers))
            .values(horizon_outbox_id=max(numbers))
        )
    return len(numbers)


def horizon(connection: sa.Connection, tables: Tables, stream: str) -> int:
    """Return the highest outbox row up to which rows of processed events may have been deleted."""
    wanted = sa.select(tables.lease.c.horizon_outbox_id).where(*tables.role(stream, RELAY))
    return connection.execute(wanted).scalar() or 0


def knows(connection: sa.Connection, tables: Tables, consumer: str, event_uuid: str) -> bool:
    """Tell whether the ledger still knows if a consumer has processed an event.

    That is so while the outbox or the table of processed events has a row: the outbox keeps a row
    until every consumer has passed it.
    """
    box, done = tables.outbox, tables.processed
    kept = sa.exists().where(box.c.event_uuid == event_uuid)
    entered = sa.exists().where(done.c.consumer == consumer, done.c.event_uuid == event_uuid)
    return bool(connection.execute(sa.select(sa.or_(kept, entered))).scalar_one())


def fence(connection: sa.Connection, tables: Tables, held: HeldLease) -> None:
    """Lock a lease until the commit. Raises `StaleLease` if another process acquired it."""
    wanted = sa.select(tables.lease.c.token).where(*mine(tables, held)).with_for_update()
    if connection.execute(wanted).first() is None:
        raise stale(held)
