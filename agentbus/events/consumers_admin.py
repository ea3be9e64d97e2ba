"""Administration of a stream's consumers: registering and deleting them, and skipping events."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.core import names
from agentbus.core.errors import AgentBusError, NotFound, Refused, UsageError
from agentbus.core.stream import position
from agentbus.core.timespec import stream_id
from agentbus.events import databases, leases, outbox, readers
from agentbus.events.databases import now_ms
from agentbus.events.leases import READER, RELAY
from agentbus.events.redis import RedisClient
from agentbus.events.stream_reader import StreamReader
from agentbus.events.tables import entry_id
from agentbus.events.telemetry import report_gone
from agentbus.queues import janitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.event import StreamEvent
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.tables import Position, Tables
    from agentbus.queues.runner import BlockingBus

END = "end"
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """The checkpoints before and after a skip, and the maximum number of events skipped."""

    before: str
    after: str
    events: int


def register_consumer(
    ledger: Ledger,
    stream: str,
    name: str,
    *,
    past: bool = False,
    bus: BlockingBus | None = None,
) -> bool:
    """Register a consumer before its first run, so that events are kept for it.

    It begins with the oldest event still there, or with `past` after all published events. Without `bus`,
    only events of this ledger are kept, and are passed by. Returns False, and changes nothing, if it is
    already registered. Raises `InvalidName`, `BackendUnavailable`.
    """
    _checked(stream, name)
    tables = ledger.tables
    with contextlib.ExitStack() as stack:
        server = None if bus is None else stack.enter_context(RedisClient(bus.runner))
        last = (0, 0) if server is None else StreamReader(ledger, server, stream).end()
        with ledger.committing("a consumer was registered") as connection:
            if _registered(connection, tables, stream, name):
                return False
            leases.register(connection, tables, stream, name)
            to = (0, 0)
            if past:
                to = max(last, outbox.marks(connection, tables, stream).floor)
                _move(connection, tables, stream, name, to, _row_at(connection, tables, stream, to))
        if server is not None:
            readers.record(ledger, server, stream, name, to)
    return True


def forget_consumer(
    ledger: Ledger,
    stream: str,
    name: str,
    *,
    force: bool = False,
    bus: BlockingBus | None = None,
) -> int:
    """Delete a consumer that will not run again, so that no events are kept for it.

    With `force` its parked events are deleted; returns their number. The rows of processed events
    stay until they are old. With `bus`, monitoring drops the consumer at once, otherwise a day
    after its last report; without it, other ledgers still keep events for it. Raises `Refused` if it
    runs, or has parked events and `force` is not set; `NotFound`, `BackendUnavailable`.
    """
    _checked(stream, name)
    tables = ledger.tables
    lease, aside, tried = tables.lease, tables.parked, tables.attempts
    with ledger.committing("a consumer was forgotten") as connection:
        if not _registered(connection, tables, stream, name):
            raise _unknown(stream, name)
        free = sa.delete(lease).where(*tables.role(stream, name), lease.c.expires_at_ms <= now_ms())
        if not connection.execute(free).rowcount:
            raise Refused(
                f"the consumer {name!r} of the stream {stream!r} runs, and would be registered again",
                hint="stop it first; if it was killed, wait until its lease has expired",
            )
        own = (aside.c.consumer == name, aside.c.stream == stream)
        dropped = connection.execute(sa.delete(aside).where(*own)).rowcount
        if dropped and not force:
            raise Refused(
                f"the consumer {name!r} of the stream {stream!r} has parked events: {dropped}",
                hint="retry them first, or drop them with force=True",
                shell_hint="see 'agentbus events parked' first, or drop them with --force",
            )
        others = sa.select(lease.c.role).where(lease.c.role == name)
        if connection.execute(others).first() is None:
            connection.execute(sa.delete(tried).where(tried.c.consumer == name))
    if bus is not None:
        # The consumer is deleted even if the server does not answer.
        with contextlib.suppress(AgentBusError), RedisClient(bus.runner) as server:
            readers.release(ledger, server, stream, name)
            report_gone(server, stream, name)
    return dropped


def forget_reader(bus: BlockingBus, stream: str, role: str) -> None:
    """Delete a reader that will not return: a removed archive, or a consumer whose ledger is gone.

    `role` is its role in `standing`, `reader:…`. The stream's relays delete it at their next check.
    Raises `InvalidName`, `BackendUnavailable`.
    """
    with RedisClient(bus.runner) as server:
        server.run(janitor.keep_events(bus.runner.scope, role.removeprefix(READER), stream, None))


def skip_events(
    ledger: Ledger, bus: BlockingBus, stream: str, name: str, *, to: str | None = None
) -> Skipped:
    """Move a consumer past events, which count as processed from then on.

    It skips the events that `EventsLost` reported, or all up to and including the entry `to`, or all that
    are published (`"end"`). A running consumer continues after them within seconds; its open transaction
    is not committed. Raises `NotFound`, `UsageError`, `BackendUnavailable`.
    """
    _checked(stream, name)
    goal = _goal(to)
    tables = ledger.tables
    with RedisClient(bus.runner) as server:
        with ledger.committing("events were skipped") as connection:
            owner = bus.runner.scope.token()
            held = leases.acquire(connection, tables, stream, name, owner, _SECONDS, force=True)
        if held is None:
            raise _unknown(stream, name)
        # Skip in a second transaction: between the two, the consumer's open transaction ends.
        try:
            with databases.translated(ledger.engine, "events were skipped"):
                return _skip(ledger, server, held, goal)
        finally:
            with ledger.committing("a lease was released") as connection:
                leases.release(connection, tables, held)


def _skip(
    ledger: Ledger, server: RedisClient, held: HeldLease, goal: Position | str | None
) -> Skipped:
    at, stream, tables = held.checkpoint, held.stream, ledger.tables
    to, row, most = at, held.outbox_id, 0
    reader = StreamReader(ledger, server, stream)
    end, passed = reader.end(), []
    if goal is None:
        loss = reader.lost(at, held.outbox_id)
        if loss is not None:
            to, row, most = loss.to, loss.outbox_id, max(loss.most, 1)
    else:
        passed = list(reader.between(at, end if isinstance(goal, str) else goal))
    with ledger.transaction() as connection:
        if goal is not None:
            last = max(end, outbox.marks(connection, tables, stream).floor)
            to = last if isinstance(goal, str) else goal
            if not at <= to <= last:
                raise UsageError(
                    f"the consumer {held.role!r} is at {entry_id(at)}, and the last event is"
                    f" {entry_id(last)}: {entry_id(to)} is not between them",
                    hint="standing(ledger) says how far it is; to='end' skips everything",
                    shell_hint="see 'agentbus events status'; --to end skips everything",
                )
            row = max(row, _row_at(connection, tables, stream, to))
            most = _enter(connection, ledger, held, to, passed)
        leases.renew(connection, tables, held, _SECONDS)
        _move(connection, tables, stream, held.role, to, row)
    readers.record(ledger, server, stream, held.role, to)
    return Skipped(entry_id(at), entry_id(to), most)


def _enter(
    connection: sa.Connection,
    ledger: Ledger,
    held: HeldLease,
    to: Position,
    passed: Sequence[StreamEvent],
) -> int:
    """Record the events up to a position as processed; returns their number.

    They are those of the outbox, and those `passed` on the stream, which other ledgers may have sent. If
    the server is wiped, they may be published again for another consumer, under other ids.
    """
    tables, box = ledger.tables, ledger.tables.outbox
    between = [
        *tables.published(held.stream),
        tables.position > held.checkpoint,
        tables.position <= to,
    ]
    columns = ("event_uuid", "stream", "position_ms", "position_seq")
    chosen = sa.select(sa.literal(held.role), box.c.id, *(box.c[each] for each in columns))
    entered = databases.insert(ledger.dialect, tables.processed).from_select(
        ["consumer", "outbox_id", *columns], chosen.where(*between)
    )
    connection.execute(entered.on_conflict_do_nothing())
    counted = sa.select(box.c.event_uuid).where(*between)
    known = set(connection.execute(counted).scalars())
    rows = [
        {
            "consumer": held.role,
            "event_uuid": event.event_uuid,
            "stream": held.stream,
            "outbox_id": 0,
            "position_ms": event.position[0],
            "position_seq": event.position[1],
        }
        for event in passed
        if event.event_uuid not in known
    ]
    if rows:
        insert = databases.insert(ledger.dialect, tables.processed)
        connection.execute(insert.on_conflict_do_nothing(), rows)
    return len(known | {event.event_uuid for event in passed})


def _move(
    connection: sa.Connection, tables: Tables, stream: str, name: str, to: Position, row: int
) -> None:
    moved = sa.update(tables.lease).where(*tables.role(stream, name))
    connection.execute(
        moved.values(
            checkpoint_ms=to[0],
            checkpoint_seq=to[1],
            checkpoint_outbox_id=row,
            updated_at_ms=now_ms(),
        )
    )


def _row_at(connection: sa.Connection, tables: Tables, stream: str, to: Position) -> int:
    """Return the last outbox row known to be published up to a position."""
    lease = tables.lease
    there = sa.select(sa.func.max(tables.outbox.c.id)).where(
        *tables.published(stream), tables.position <= to
    )
    passed = sa.select(sa.func.max(lease.c.checkpoint_outbox_id)).where(
        lease.c.stream == stream, sa.tuple_(lease.c.checkpoint_ms, lease.c.checkpoint_seq) <= to
    )
    return max(connection.execute(query).scalar() or 0 for query in (there, passed))


def _registered(connection: sa.Connection, tables: Tables, stream: str, name: str) -> bool:
    wanted = sa.select(tables.lease.c.role).where(*tables.role(stream, name))
    return connection.execute(wanted).first() is not None


def _goal(to: str | None) -> Position | str | None:
    if to is None or to == END:
        return to
    if stream_id(to) is None:
        raise UsageError(
            f"{to[:60]!a} is not the id of an entry", hint="give one such as 1763622000123-0"
        )
    return position(to)


def _checked(stream: str, name: str) -> None:
    names.name("stream", stream)
    if names.name("consumer", name) == RELAY or name.startswith(READER):
        raise UsageError(f"{name[:60]!r} cannot be a consumer's name", hint="name a consumer")


def _unknown(stream: str, name: str) -> NotFound:
    return NotFound(
        f"the stream {stream!r} has no consumer {name!r}",
        hint="standing(ledger) returns the consumers",
        shell_hint="see 'agentbus events status'",
    )
