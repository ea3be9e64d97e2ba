"""Which consumers a stream has: made known before their first run, forgotten, moved past events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.core import names
from agentbus.core.errors import NotFound, Refused, UsageError
from agentbus.core.stream import position
from agentbus.core.timespec import stream_id
from agentbus.events import databases, leases, outbox
from agentbus.events.databases import now_ms
from agentbus.events.leases import READER, RELAY
from agentbus.events.redis import RedisClient
from agentbus.events.stream_reader import StreamReader
from agentbus.queues import janitor

if TYPE_CHECKING:
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.outbox import Position
    from agentbus.queues.runner import BlockingBus

END = "end"
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """From where to where a consumer was moved, and past how many events at most."""

    before: str
    after: str
    events: int


def register_consumer(ledger: Ledger, stream: str, name: str, *, past: bool = False) -> bool:
    """Make a consumer known before it first runs, so that nothing is removed that it has not passed.

    It begins with the oldest event that is there, with `past` behind all that are published. Returns
    False, and changes nothing, if it is known. Raises `InvalidName`, `BackendUnavailable`.
    """
    _checked(stream, name)
    made = ledger.tables
    with ledger.committing("a consumer was registered") as connection:
        if _known(connection, ledger, stream, name) is not None:
            return False
        leases.register(connection, made, stream, name)
        if past:
            to = outbox.marks(connection, made, stream).floor
            _move(connection, ledger, stream, name, to, _row_at(connection, ledger, stream, to))
    return True


def forget_consumer(ledger: Ledger, stream: str, name: str, *, force: bool = False) -> int:
    """Forget a consumer that is gone for good, so that nothing is kept for it any more.

    Events that it parked are dropped with `force`; returns how many. What it acted on stays known until
    it is old. Raises `Refused` if it runs, or has parked events without `force`, `NotFound`,
    `BackendUnavailable`.
    """
    _checked(stream, name)
    made = ledger.tables
    lease, aside, tried = made.lease, made.parked, made.attempts
    with ledger.committing("a consumer was forgotten") as connection:
        if _known(connection, ledger, stream, name) is None:
            raise _unknown(stream, name)
        gone = connection.execute(
            sa.delete(lease).where(
                lease.c.stream == stream, lease.c.role == name, lease.c.expires_at_ms <= now_ms()
            )
        )
        if not gone.rowcount:
            raise Refused(
                f"the consumer {name!r} of the stream {stream!r} runs: it would be known again at once",
                hint="end it first; one that was killed is free when its lease has run out",
            )
        mine = (aside.c.consumer == name, aside.c.stream == stream)
        dropped = connection.execute(sa.delete(aside).where(*mine)).rowcount
        if dropped and not force:
            raise Refused(
                f"the consumer {name!r} of the stream {stream!r} has parked events: {dropped}",
                hint="retry them first, or drop them with force=True",
                shell_hint="see 'agentbus events parked' first, or drop them with --force",
            )
        others = sa.select(lease.c.role).where(lease.c.role == name)
        if connection.execute(others).first() is None:
            connection.execute(sa.delete(tried).where(tried.c.consumer == name))
    return dropped


def forget_reader(bus: BlockingBus, stream: str, role: str) -> None:
    """Forget a reader that is no consumer (`reader:…`, an archive that is gone), and keep nothing for it.

    The stream's relay does so when it next looks. Raises `InvalidName`, `BackendUnavailable`.
    """
    server = RedisClient(bus.runner)
    try:
        server.run(janitor.keep_events(bus.runner.scope, role.removeprefix(READER), stream, None))
    finally:
        server.close()


def skip_events(
    ledger: Ledger, bus: BlockingBus, stream: str, name: str, *, to: str | None = None
) -> Skipped:
    """Move a consumer past events, which count as processed then; nothing brings them back to it.

    Past those that are lost, as `EventsLost` told, or up to and with the entry `to`, or past all that are
    published (`"end"`). A consumer that runs goes on behind them within seconds; what it has under way
    is not committed. Raises `NotFound`, `UsageError`, `BackendUnavailable`.
    """
    _checked(stream, name)
    goal = _goal(to)
    made = ledger.tables
    server = RedisClient(bus.runner)
    try:
        with ledger.committing("events were skipped") as connection:
            held = leases.seize(connection, made, stream, name, bus.runner.scope.token(), _SECONDS)
        if held is None:
            raise _unknown(stream, name)
        # In a transaction of its own: what the consumer has under way ends between.
        try:
            with databases.told(ledger.engine, "events were skipped"):
                return _skip(ledger, server, held, goal)
        finally:
            with ledger.committing("a lease was given back") as connection:
                leases.release(connection, made, held)
    finally:
        server.close()


def _skip(
    ledger: Ledger, server: RedisClient, held: HeldLease, goal: Position | str | None
) -> Skipped:
    at, stream = held.checkpoint, held.stream
    to, row, most = at, held.outbox_id, 0
    if goal is None:
        loss = StreamReader(ledger, server, stream).lost(at, held.outbox_id)
        if loss is not None:
            to, row, most = loss.to, loss.outbox_id, max(loss.most, 1)
    with ledger.transaction() as connection:
        if goal is not None:
            last = outbox.marks(connection, ledger.tables, stream).floor
            to = last if isinstance(goal, str) else goal
            if not at <= to <= last:
                raise UsageError(
                    f"the consumer {held.role!r} is at {_id(at)}, and the last event is {_id(last)}:"
                    f" {_id(to)} is not between them",
                    hint="standing(ledger) says how far it is; to='end' skips everything",
                    shell_hint="see 'agentbus events status'; --to end skips everything",
                )
            row = max(row, _row_at(connection, ledger, stream, to))
            most = _enter(connection, ledger, held, to)
        leases.renew(connection, ledger.tables, held, _SECONDS)
        _move(connection, ledger, stream, held.role, to, row)
    return Skipped(_id(at), _id(to), most)


def _enter(connection: sa.Connection, ledger: Ledger, held: HeldLease, to: Position) -> int:
    """Enter what lies up to a position as processed; returns how many events that are.

    A server that is wiped has them published anew under other ids, if another consumer needs them.
    """
    box, done = ledger.tables.outbox, ledger.tables.processed
    place = sa.tuple_(box.c.position_ms, box.c.position_seq)
    between = (box.c.stream == held.stream, place > held.checkpoint, place <= to)
    columns = ("event_uuid", "stream", "position_ms", "position_seq")
    chosen = sa.select(sa.literal(held.role), box.c.id, *(box.c[each] for each in columns)).where(
        *between
    )
    entered = databases.insert(ledger.dialect, done).from_select(
        ["consumer", "outbox_id", *columns], chosen
    )
    connection.execute(entered.on_conflict_do_nothing())
    found: int = connection.execute(
        sa.select(sa.func.count()).select_from(box).where(*between)
    ).scalar_one()
    return found


def _move(
    connection: sa.Connection, ledger: Ledger, stream: str, name: str, to: Position, row: int
) -> None:
    lease = ledger.tables.lease
    connection.execute(
        sa.update(lease)
        .where(lease.c.stream == stream, lease.c.role == name)
        .values(
            checkpoint_ms=to[0],
            checkpoint_seq=to[1],
            checkpoint_outbox_id=row,
            updated_at_ms=now_ms(),
        )
    )


def _row_at(connection: sa.Connection, ledger: Ledger, stream: str, to: Position) -> int:
    """Return the last row of the outbox that was published up to a position, as far as it is known."""
    box, lease = ledger.tables.outbox, ledger.tables.lease
    place = sa.tuple_(box.c.position_ms, box.c.position_seq)
    there = sa.select(sa.func.max(box.c.id)).where(
        box.c.stream == stream, box.c.position_ms.is_not(None), place <= to
    )
    passed = sa.select(sa.func.max(lease.c.checkpoint_outbox_id)).where(
        lease.c.stream == stream,
        sa.tuple_(lease.c.checkpoint_ms, lease.c.checkpoint_seq) <= to,
    )
    return max(connection.execute(one).scalar() or 0 for one in (there, passed))


def _known(connection: sa.Connection, ledger: Ledger, stream: str, name: str) -> Any:
    lease = ledger.tables.lease
    return connection.execute(
        sa.select(lease).where(lease.c.stream == stream, lease.c.role == name)
    ).first()


def _goal(to: str | None) -> Position | str | None:
    if to is None or to == END:
        return to
    if stream_id(to) is None:
        raise UsageError(
            f"{to[:60]!a} is no id of an entry", hint="give one such as 1763622000123-0"
        )
    return position(to)


def _checked(stream: str, name: str) -> None:
    names.name("stream", stream)
    if names.name("consumer", name) == RELAY or name.startswith(READER):
        raise UsageError(f"{name[:60]!r} is no consumer's name", hint="name a consumer")


def _unknown(stream: str, name: str) -> NotFound:
    return NotFound(
        f"the stream {stream!r} has no consumer {name!r}",
        hint="standing(ledger) returns the consumers",
        shell_hint="see 'agentbus events status'",
    )


def _id(at: Position) -> str:
    return f"{at[0]}-{at[1]}"
