"""Marks that a process handles batches: a mark that remains shows that its process was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.events import databases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.events.declare import Declaration
    from agentbus.events.event import StreamEvent
    from agentbus.events.ledger import Ledger

# The mark is a row among the attempts without an event; its column for the error names the process.
_NO_EVENT = ""


class BatchMark:
    """The mark of a consumer's process, `owner`; it is set while there are events, not for each batch."""

    def __init__(self, ledger: Ledger, declaration: Declaration, owner: str) -> None:
        self.is_set = False
        self._table = ledger.tables.attempts
        self._insert = databases.insert(ledger.dialect, self._table).on_conflict_do_nothing()
        self._consumer = declaration.name
        # A process that ended in a batch counts as an attempt of each event, but never as the last one.
        self._spent = min(1, declaration.attempts - 1)
        self._owner = owner

    def set(self, connection: sa.Connection, events: Sequence[StreamEvent]) -> tuple[bool, bool]:
        """Set the mark; return whether attempts are recorded, and whether to handle one by one."""
        table, first = self._table, events[0].event_uuid
        own = table.c.consumer == self._consumer
        attempts = connection.execute(sa.select(table.c.event_uuid, table.c.last_error).where(own))
        known = {row.event_uuid: row.last_error for row in attempts}
        # A mark of this process is left from before it lost the database.
        ended = known.pop(_NO_EVENT, self._owner) != self._owner
        alone = ended or first in known
        if ended and first not in known:
            rows = [
                {"consumer": self._consumer, "event_uuid": event.event_uuid} for event in events
            ]
            connection.execute(self._insert.values(attempts=self._spent), rows)
        connection.execute(sa.delete(table).where(own, table.c.event_uuid == _NO_EVENT))
        row = {"consumer": self._consumer, "event_uuid": _NO_EVENT, "attempts": 0}
        connection.execute(self._insert, {**row, "last_error": self._owner})
        return bool(known) or alone, alone

    def remove(self, connection: sa.Connection) -> None:
        """Remove the mark, unless it belongs to another process."""
        table = self._table
        connection.execute(
            sa.delete(table).where(
                table.c.consumer == self._consumer,
                table.c.event_uuid == _NO_EVENT,
                table.c.last_error == self._owner,
            )
        )
