"""A consumer's transactions: record an event as processed, run its handler, move the checkpoint."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from agentbus.events import databases, leases
from agentbus.events.batch_mark import BatchMark
from agentbus.events.databases import now_ms, transaction_id
from agentbus.events.declare import Context
from agentbus.events.guarantee import Guarantee
from agentbus.events.guard import Guard, TimeLimit, ended
from agentbus.events.handler_errors import HandlerError, error_text
from agentbus.workers.pause import leaving_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy.orm import Session

    from agentbus.core.errors import AgentBusError
    from agentbus.events.declare import Declaration
    from agentbus.events.event import StreamEvent
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.parked_events import Parked
    from agentbus.events.tables import Position, Tables

# Columns of a processed event whose values differ within a batch.
_PER_EVENT = ("event_uuid", "outbox_id", "position_ms", "position_seq")


class EventTransactions:
    """The transactions of a consumer that holds the lease; each method is one, unless noted.

    Every method raises `StaleLease` without effect if another process has acquired the lease.
    """

    def __init__(
        self,
        declaration: Declaration,
        ledger: Ledger,
        held: HeldLease,
        owner: str,
        lease: float,
        at: Callable[[str], None],
        ran: Callable[[float], None],
        beat: Callable[[], None],
    ) -> None:
        self.held = held
        self._mark = BatchMark(ledger, declaration, owner)
        # True if attempts of the events may be recorded.
        self._counted = False
        self._consumer = declaration
        self._ledger = ledger
        # Outbox rows of other ledgers have the same numbers as rows of this one.
        self._own = (0, ledger.identity())
        self._lease = lease
        self._at = at
        self._ran = ran
        self._beat = beat
        tables = self._tables = ledger.tables
        processed = databases.insert(ledger.dialect, tables.processed)
        self._enter = _unless_known(processed, tables)
        self._enter_many = self._enter
        self._arrays = ledger.dialect == databases.POSTGRESQL
        if self._arrays:
            columns, rows = _of_arrays(tables)
            self._enter_many = _unless_known(processed.from_select(columns, rows), tables)
        self._advance = leases.advance(tables)

    def exactly_once(self, events: Sequence[StreamEvent], attempt: int = 1) -> int:
        """Handle events; returns the number that were not duplicates. Raises `HandlerError`."""
        with self._transaction() as (connection, limit):
            fresh, number = self._fresh(connection, events)
            self._at("consumer.deduped")
            if fresh:
                what = fresh if self._consumer.batch else fresh[0]
                self._handle(connection, limit, what, attempt)
            if self._counted:
                self._delete_attempts(connection, events)
            self._at("consumer.handled")
            self._move_past(connection, events[-1], number)
        self._at("consumer.committed")
        return len(fresh)

    def at_least_once(self, event: StreamEvent, attempt: int) -> int:
        """Handle an event that is not a duplicate, and record it as processed in a later transaction."""
        processed = self._tables.processed
        with self._ledger.engine.connect() as connection:
            known = sa.select(processed.c.at_ms).where(*self._of(processed, [event]))
            fresh = connection.execute(known).first() is None
        if fresh:
            self._call(event, attempt)
            self._at("consumer.handled")
        self.skip(event)
        return int(fresh)

    def at_most_once(self, event: StreamEvent, attempt: int) -> int:
        """Record an event as processed, and handle it after the commit unless it is a duplicate."""
        if not self.skip(event):
            return 0
        self._call(event, attempt)
        self._at("consumer.handled")
        return 1

    def skip(self, event: StreamEvent) -> bool:
        """Record an event as processed without handling it; returns whether it was not a duplicate."""
        with self._ledger.transaction() as connection:
            fresh, number = self._fresh(connection, [event])
            self._at("consumer.deduped")
            self._delete_attempts(connection, [event])
            self._move_past(connection, event, number)
        self._at("consumer.committed")
        return bool(fresh)

    def skip_entry(self, position: Position) -> None:
        """Move the checkpoint past an entry that is not an event."""
        with self._ledger.transaction() as connection:
            self._move(connection, position, self.held.outbox_id, _number(connection))

    def retry(self, parked: Parked, wrong: AgentBusError | None) -> bool:
        """Handle a parked event and delete it, in several transactions; False if it is gone.

        If it is still invalid (`wrong`), or fails again, the error is recorded. Raises
        `HandlerError`.
        """
        consumer, table = self._consumer, self._tables.parked
        this = table.c.id == parked.id
        # Clear the request before the handler runs: an event that kills the process must not be
        # retried again unless requested.
        with self._ledger.transaction() as connection:
            leases.renew(connection, self._tables, self.held, self._lease)
            begun = connection.execute(
                sa.update(table)
                .where(this, table.c.retry_ms.is_not(None))
                .values(retry_ms=None, attempts=table.c.attempts + 1)
            )
            if begun.rowcount and wrong is None and consumer.guarantee is Guarantee.AT_MOST_ONCE:
                connection.execute(sa.delete(table).where(this))
        if not begun.rowcount:
            return False
        try:
            if wrong is not None:
                raise HandlerError from wrong
            if consumer.guarantee is not Guarantee.EXACTLY_ONCE:
                self._call(parked.event, parked.attempts + 1)
            with self._transaction() as (connection, limit):
                number = _number(connection)
                connection.execute(sa.delete(table).where(this))
                if consumer.guarantee is Guarantee.EXACTLY_ONCE:
                    what = [parked.event] if consumer.batch else parked.event
                    self._handle(connection, limit, what, parked.attempts + 1)
                self._keep_lease(connection, number)
        except HandlerError as error:
            failed = sa.update(table).where(this).values(error=error_text(error.__cause__ or error))
            with self._ledger.transaction() as connection:
                connection.execute(failed)
            raise
        return True

    # -- failures --

    def count(self, event: StreamEvent, *, again: bool = False) -> tuple[int, str | None]:
        """Count an attempt before it begins; returns its number, and the previous attempt's error.

        With `again` the number does not change: the database was lost during the attempt.
        """
        attempts, self._counted = self._tables.attempts, True
        with self._ledger.transaction() as connection:
            # Check the lease, and extend it for the attempt.
            leases.renew(connection, self._tables, self.held, self._lease)
            row = connection.execute(
                databases.insert(self._ledger.dialect, attempts)
                .values(consumer=self._consumer.name, event_uuid=event.event_uuid, attempts=1)
                .on_conflict_do_update(
                    index_elements=[attempts.c.consumer, attempts.c.event_uuid],
                    set_={"attempts": attempts.c.attempts + (0 if again else 1)},
                )
                .returning(attempts.c.attempts, attempts.c.last_error)
            ).one()
        return row.attempts, row.last_error

    def begin(self, events: Sequence[StreamEvent]) -> bool:
        """Mark that batches are being handled; return False to handle these events singly.

        That is so if another process left the mark, or the first of them was tried by itself.
        """
        if self._mark.is_set:
            return True
        with self._ledger.transaction() as connection:
            leases.renew(connection, self._tables, self.held, self._lease)
            self._counted, alone = self._mark.set(connection, events)
        self._mark.is_set = True
        return not alone

    def rest(self) -> None:
        """Remove the mark of `begin` when no events are left."""
        if self._mark.is_set:
            with self._ledger.transaction() as connection:
                self._mark.remove(connection)
            self._mark.is_set = False

    def release(self, connection: sa.Connection) -> None:
        """Release the lease, and remove the mark of `begin`."""
        self._mark.remove(connection)
        leases.release(connection, self._tables, self.held)

    def failed(self, event: StreamEvent, error: BaseException) -> None:
        attempts = self._tables.attempts
        failed = sa.update(attempts).where(*self._of(attempts, [event]))
        with self._ledger.transaction() as connection:
            connection.execute(failed.values(last_error=error_text(error)))

    def park(self, event: StreamEvent, error: str, attempts: int) -> None:
        """Park an event, and move the checkpoint past it."""
        row = {
            "consumer": self._consumer.name,
            "stream": event.stream_name,
            "event_uuid": event.event_uuid,
            "position": event.redis_id,
            "event": orjson.dumps(event).decode(),
            "error": error,
            "attempts": attempts,
        }
        with self._ledger.transaction() as connection:
            fresh, number = self._fresh(connection, [event])
            if fresh:
                insert = databases.insert(self._ledger.dialect, self._tables.parked)
                connection.execute(insert.on_conflict_do_nothing(), row)
            self._delete_attempts(connection, [event])
            self._move_past(connection, event, number, "consumer.parked")
        self._at("consumer.committed")

    # -- the handler --

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[sa.Connection, TimeLimit]]:
        """Run a block in a handler's transaction; a time limit shows only at the next statement."""
        limit = TimeLimit()
        try:
            with self._ledger.transaction() as connection:
                limit.watch(connection)
                yield connection, limit
        except sa.exc.DBAPIError as error:
            limit.look(error)
            if limit.exceeded is None:
                raise
            raise HandlerError from limit.exceeded
        finally:
            limit.close()

    def _handle(self, connection: sa.Connection, limit: TimeLimit, what: Any, attempt: int) -> None:
        try:
            with Guard(connection, limit) as guard:
                self._run(what, attempt, guard.session)
        except Exception as error:
            raise HandlerError from error

    def _call(self, event: StreamEvent, attempt: int) -> None:
        """Handle an event outside of any transaction."""
        try:
            self._run(event, attempt)
        except Exception as error:
            raise HandlerError from error

    def _run(self, what: Any, attempt: int, session: Session | None = None) -> None:
        consumer, began = self._consumer, time.perf_counter()
        try:
            with leaving_child():
                consumer.call(
                    what, Context(consumer.name, consumer.stream, attempt, self._beat), session
                )
        finally:
            self._ran(time.perf_counter() - began)

    # -- steps of a transaction --

    def _fresh(
        self, connection: sa.Connection, events: Sequence[StreamEvent]
    ) -> tuple[list[StreamEvent], int]:
        """Record events as processed; returns those that are not duplicates, and the transaction's id."""
        rows = self._entered(connection, events)
        if not rows:
            return [], _number(connection)
        entered = {row.event_uuid for row in rows}
        fresh = []
        for event in events:
            # A batch may contain the same event twice.
            if event.event_uuid in entered:
                entered.remove(event.event_uuid)
                fresh.append(event)
        return fresh, rows[0].transaction

    def _entered(
        self, connection: sa.Connection, events: Sequence[StreamEvent]
    ) -> Sequence[sa.Row[Any]]:
        """Insert the missing rows of events; return their UUIDs, with the transaction's id."""
        rows = [
            {
                "consumer": self._consumer.name,
                "event_uuid": event.event_uuid,
                "stream": event.stream_name,
                "outbox_id": event.outbox_id if event.ledger in self._own else 0,
                "position_ms": event.position[0],
                "position_seq": event.position[1],
            }
            for event in events
        ]
        if len(rows) == 1:
            return connection.execute(self._enter, rows[0]).all()
        if not self._arrays:
            return connection.execute(self._enter_many, rows).all()
        arrays = {name: [row[name] for row in rows] for name in _PER_EVENT}
        shared = {"of_consumer": self._consumer.name, "of_stream": self._consumer.stream}
        return connection.execute(self._enter_many, arrays | shared).all()

    def _move_past(
        self,
        connection: sa.Connection,
        event: StreamEvent,
        transaction: int,
        at: str = "consumer.checkpointed",
    ) -> None:
        own = event.ledger in self._own
        row = event.outbox_id if own else self.held.outbox_id
        self._move(connection, event.position, row, transaction)
        self._at(at)

    def _move(
        self, connection: sa.Connection, position: Position, outbox_id: int, transaction: int
    ) -> None:
        """Move the checkpoint, if the lease is still held and the transaction is still the same."""
        held = self.held
        values = {
            "at_stream": held.stream,
            "at_role": held.role,
            "at_token": held.token,
            "at_transaction": transaction,
            "to_ms": position[0],
            "to_seq": position[1],
            "to_outbox_id": outbox_id,
        }
        if connection.execute(self._advance, values).rowcount != 1:
            raise self._why_not(connection, transaction)

    def _keep_lease(self, connection: sa.Connection, transaction: int) -> None:
        """Lock the lease until the commit, under the conditions of `_move`."""
        kept = (
            sa.update(self._tables.lease)
            .where(*leases.mine(self._tables, self.held), transaction_id() == transaction)
            .values(updated_at_ms=now_ms())
        )
        if connection.execute(kept).rowcount != 1:
            raise self._why_not(connection, transaction)

    def _why_not(self, connection: sa.Connection, transaction: int) -> Exception:
        if _number(connection) == transaction:
            return leases.stale(self.held)
        error = HandlerError()
        error.__cause__ = ended()
        return error

    def _delete_attempts(self, connection: sa.Connection, events: Sequence[StreamEvent]) -> None:
        attempts = self._tables.attempts
        connection.execute(sa.delete(attempts).where(*self._of(attempts, events)))

    def _of(self, table: sa.Table, events: Sequence[StreamEvent]) -> list[Any]:
        uuids = [event.event_uuid for event in events]
        which = table.c.event_uuid == uuids[0] if len(uuids) == 1 else table.c.event_uuid.in_(uuids)
        return [table.c.consumer == self._consumer.name, which]


def _unless_known(insert: Any, tables: Tables) -> Any:
    return insert.on_conflict_do_nothing().returning(
        tables.processed.c.event_uuid, transaction_id().label("transaction")
    )


def _of_arrays(tables: Tables) -> tuple[list[str], sa.Select[Any]]:
    """Return the columns and the SELECT FROM unnest of an INSERT: one array parameter per column.

    One parameter per value of 500 events would cost more time than the rest of the statement.
    """
    types = [tables.processed.c[name].type for name in _PER_EVENT]
    arrays = [
        sa.bindparam(name, type_=postgresql.ARRAY(kind))
        for name, kind in zip(_PER_EVENT, types, strict=True)
    ]
    rows = sa.func.unnest(*arrays).table_valued(*_PER_EVENT).render_derived()
    text = tables.processed.c.consumer.type
    shared = [sa.bindparam(name, type_=text) for name in ("of_consumer", "of_stream")]
    columns = ["consumer", "stream", *_PER_EVENT]
    return columns, sa.select(*shared, *(rows.c[name] for name in _PER_EVENT))


def _number(connection: sa.Connection) -> int:
    number: int = connection.execute(sa.select(transaction_id())).scalar_one()
    return number
