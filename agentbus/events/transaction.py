"""The transaction in which an event is acted on: entered as processed, handled, passed, or none of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.events import databases, leases
from agentbus.events.databases import now_ms, transaction_id
from agentbus.events.declare import Context
from agentbus.events.event import as_json
from agentbus.events.guarantee import Guarantee
from agentbus.events.guard import Guard, ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from agentbus.events.declare import Declaration
    from agentbus.events.event import StreamEvent
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.parked_events import Parked

_LONGEST_ERROR = 2000


class HandlerError(Exception):
    """Holds what a handler raised, so that it is not taken for trouble of ours; its cause is the error."""


class EventTransactions:
    """Acts on events for a consumer that holds the lease; every method is one transaction."""

    def __init__(
        self,
        registration: Declaration,
        ledger: Ledger,
        held: HeldLease,
        lease: float,
        at: Callable[[str], None],
        ran: Callable[[float], None],
    ) -> None:
        self._registration = registration
        self._ledger = ledger
        self._held = held
        self._lease = lease
        self._at = at
        self._ran = ran
        made = ledger.tables
        processed = databases.insert(ledger.dialect, made.processed)
        self._enter = processed.on_conflict_do_nothing().returning(
            made.processed.c.event_uuid, transaction_id().label("transaction")
        )
        self._advance = leases.advance(made)

    def exactly_once(
        self, events: Sequence[StreamEvent], attempt: int = 1, *, counted: bool = False
    ) -> int:
        """Act on events; returns on how many, without duplicates. `counted` attempts are forgotten then.

        Raises `HandlerError`, and `StaleLease` if the lease is another's: then nothing was done.
        """
        mine = self._registration
        with self._ledger.transaction() as connection:
            fresh, number = self._fresh(connection, events)
            self._at("consumer.deduped")
            if fresh:
                self._handle(connection, fresh if mine.batch else fresh[0], attempt)
                if counted:
                    self._forget(connection, fresh)
            self._at("consumer.handled")
            self._move(connection, events[-1], number)
            self._at("consumer.checkpointed")
        self._at("consumer.committed")
        return len(fresh)

    def _handle(self, connection: sa.Connection, what: Any, attempt: int) -> None:
        try:
            with Guard(connection) as guard:
                self._run(what, attempt, guard.session)
        except Exception as error:
            raise HandlerError from error

    def at_least_once(self, event: StreamEvent, attempt: int) -> int:
        """Act on an event unless it was entered as processed, and enter it afterwards."""
        known = not self._known(event)
        if known:
            self._call(event, attempt)
            self._at("consumer.handled")
        self.skip(event)
        return int(known)

    def at_most_once(self, event: StreamEvent, attempt: int) -> int:
        """Enter an event as processed, and act on it afterwards if it was not there."""
        if not self.skip(event):
            return 0
        self._call(event, attempt)
        self._at("consumer.handled")
        return 1

    def _call(self, event: StreamEvent, attempt: int) -> None:
        """Act on an event outside of any transaction."""
        try:
            self._run(event, attempt)
        except Exception as error:
            raise HandlerError from error

    def _run(self, what: Any, attempt: int, session: Session | None = None) -> None:
        mine, began = self._registration, time.perf_counter()
        try:
            mine.call(what, Context(mine.name, mine.stream, attempt), session)
        finally:
            self._ran(time.perf_counter() - began)

    def skip(self, event: StreamEvent) -> bool:
        """Enter an event as processed, and pass it; tells whether it was not there."""
        with self._ledger.transaction() as connection:
            fresh, number = self._fresh(connection, [event])
            self._at("consumer.deduped")
            self._forget(connection, [event])
            self._move(connection, event, number)
            self._at("consumer.checkpointed")
        self._at("consumer.committed")
        return bool(fresh)

    def again(self, one: Parked) -> bool:
        """Act on a parked event that was asked for, and take it from those aside; False if it is gone.

        What it fails with is entered there. Raises `HandlerError`, `StaleLease`.
        """
        mine, made = self._registration, self._ledger.tables.parked
        aside = sa.delete(made).where(made.c.id == one.id)
        # Before it begins: an event that kills the process must not do so again unasked.
        with self._ledger.transaction() as connection:
            leases.renew(connection, self._ledger.tables, self._held, self._lease)
            begun = connection.execute(
                sa.update(made)
                .where(made.c.id == one.id, made.c.retry_ms.is_not(None))
                .values(retry_ms=None, attempts=made.c.attempts + 1)
            )
            if begun.rowcount and mine.guarantee is Guarantee.AT_MOST_ONCE:
                connection.execute(aside)
        if not begun.rowcount:
            return False
        try:
            if mine.guarantee is not Guarantee.EXACTLY_ONCE:
                self._call(one.event, one.attempts + 1)
            with self._ledger.transaction() as connection:
                number = connection.execute(sa.select(transaction_id())).scalar_one()
                connection.execute(aside)
                if mine.guarantee is Guarantee.EXACTLY_ONCE:
                    what = [one.event] if mine.batch else one.event
                    self._handle(connection, what, one.attempts + 1)
                self._still(connection, number)
        except HandlerError as error:
            cause = error.__cause__
            assert cause is not None
            with self._ledger.transaction() as connection:
                connection.execute(
                    sa.update(made).where(made.c.id == one.id).values(error=told(cause))
                )
            raise
        return True

    def _still(self, connection: sa.Connection, transaction: int) -> None:
        """Hold the lease to the end of a transaction, which must be the one that it was."""
        lease = self._ledger.tables.lease
        done = connection.execute(
            sa.update(lease)
            .where(*leases.mine(self._ledger.tables, self._held), transaction_id() == transaction)
            .values(updated_at_ms=now_ms())
        )
        if done.rowcount != 1:
            raise self._why_not(connection, transaction)

    def pass_by(self, position: tuple[int, int]) -> None:
        """Move the checkpoint past an entry that is no event."""
        with self._ledger.transaction() as connection:
            number = connection.execute(sa.select(transaction_id())).scalar_one()
            self._to(connection, position, self._held.outbox_id, number)

    # -- failures --

    def count(self, event: StreamEvent, *, again: bool = False) -> tuple[int, str | None]:
        """Count an attempt before it begins; returns its number, and what the one before it said.

        It is not counted `again` if the database went away in the middle of it.
        """
        made = self._ledger.tables.attempts
        with self._ledger.transaction() as connection:
            # Only who holds the lease counts; and so it is held for the attempt.
            leases.renew(connection, self._ledger.tables, self._held, self._lease)
            row = connection.execute(
                databases.insert(self._ledger.dialect, made)
                .values(consumer=self._registration.name, event_uuid=event.event_uuid, attempts=1)
                .on_conflict_do_update(
                    index_elements=[made.c.consumer, made.c.event_uuid],
                    set_={"attempts": made.c.attempts + (0 if again else 1)},
                )
                .returning(made.c.attempts, made.c.last_error)
            ).one()
        return row.attempts, row.last_error

    def failed(self, event: StreamEvent, error: BaseException) -> None:
        """Note what an attempt failed with."""
        made = self._ledger.tables.attempts
        with self._ledger.transaction() as connection:
            connection.execute(
                sa.update(made).where(*self._of(made, [event])).values(last_error=told(error))
            )

    def park(self, event: StreamEvent, error: str, attempts: int) -> None:
        """Put an event aside, and pass it."""
        made = self._ledger.tables.parked
        row = {
            "consumer": self._registration.name,
            "stream": event.stream_name,
            "event_uuid": event.event_uuid,
            "position": event.redis_id,
            "event": as_json(event),
            "error": error,
            "attempts": attempts,
        }
        with self._ledger.transaction() as connection:
            fresh, number = self._fresh(connection, [event])
            if fresh:
                insert = databases.insert(self._ledger.dialect, made)
                connection.execute(insert.on_conflict_do_nothing(), row)
            self._forget(connection, [event])
            self._move(connection, event, number)
            self._at("consumer.parked")
        self._at("consumer.committed")

    # -- what they are made of --

    def _fresh(
        self, connection: sa.Connection, events: Sequence[StreamEvent]
    ) -> tuple[list[StreamEvent], int]:
        """Enter events as processed; returns those that were not, and this transaction's id."""
        rows = [
            {
                "consumer": self._registration.name,
                "event_uuid": event.event_uuid,
                "stream": event.stream_name,
                "outbox_id": event.outbox_id,
                "position_ms": event.position[0],
                "position_seq": event.position[1],
            }
            for event in events
        ]
        found = connection.execute(self._enter, rows if len(rows) > 1 else rows[0]).all()
        if not found:
            return [], connection.execute(sa.select(transaction_id())).scalar_one()
        entered = {row.event_uuid for row in found}
        fresh = []
        for event in events:
            # An event may stand twice in one batch.
            if event.event_uuid in entered:
                entered.remove(event.event_uuid)
                fresh.append(event)
        return fresh, found[0].transaction

    def _move(self, connection: sa.Connection, event: StreamEvent, transaction: int) -> None:
        self._to(connection, event.position, event.outbox_id, transaction)

    def _to(
        self,
        connection: sa.Connection,
        position: tuple[int, int],
        outbox_id: int,
        transaction: int,
    ) -> None:
        held = self._held
        done = connection.execute(
            self._advance,
            {
                "at_stream": held.stream,
                "at_role": held.role,
                "at_token": held.token,
                "at_transaction": transaction,
                "to_ms": position[0],
                "to_seq": position[1],
                "to_outbox_id": outbox_id,
            },
        )
        if done.rowcount != 1:
            raise self._why_not(connection, transaction)

    def _why_not(self, connection: sa.Connection, transaction: int) -> Exception:
        if connection.execute(sa.select(transaction_id())).scalar_one() == transaction:
            return leases.stale(self._held)
        error = HandlerError()
        error.__cause__ = ended()
        return error

    def _known(self, event: StreamEvent) -> bool:
        made = self._ledger.tables.processed
        with self._ledger.engine.connect() as connection:
            found = connection.execute(sa.select(made.c.at_ms).where(*self._of(made, [event])))
            return found.first() is not None

    def _forget(self, connection: sa.Connection, events: Sequence[StreamEvent]) -> None:
        made = self._ledger.tables.attempts
        connection.execute(sa.delete(made).where(*self._of(made, events)))

    def _of(self, made: sa.Table, events: Sequence[StreamEvent]) -> list[Any]:
        uuids = [event.event_uuid for event in events]
        which = made.c.event_uuid == uuids[0] if len(uuids) == 1 else made.c.event_uuid.in_(uuids)
        return [made.c.consumer == self._registration.name, which]


def told(error: BaseException) -> str:
    """Return an error in words that every database can hold."""
    words = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR].replace("\0", "\\0")
    return words.encode("utf-8", "backslashreplace").decode()
