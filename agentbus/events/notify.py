"""PostgreSQL's word that the outbox has new rows: a hint, never the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.events.databases import POSTGRESQL

if TYPE_CHECKING:
    import threading

    from agentbus.events.ledger import Ledger

# Without hints the outbox is looked at so often, in seconds.
_GLANCE = 0.1


class OutboxNotifications:
    """Waits for new rows, at most so long; without PostgreSQL, or in trouble, just for so long."""

    def __init__(self, ledger: Ledger, stopped: threading.Event) -> None:
        self._ledger = ledger
        self._stopped = stopped
        self._connection: sa.Connection | None = None

    def wait(self, seconds: float) -> None:
        """Return when there may be new rows, or after so many seconds."""
        if self._ledger.dialect != POSTGRESQL:
            self._stopped.wait(min(seconds, _GLANCE))
            return
        try:
            if self._connection is None:
                # What was committed before we listen was not told: look first.
                self._listen()
                return
            raw: Any = self._connection.connection.driver_connection
            for _ in raw.notifies(timeout=seconds, stop_after=1):
                return
        except Exception:  # noqa: BLE001 (polling goes on without hints, whatever broke)
            self.close()
            self._stopped.wait(seconds)

    def _listen(self) -> None:
        connection = self._ledger.engine.connect()
        self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        name = self._ledger.tables.channel
        quoted = connection.dialect.identifier_preparer.quote_identifier(name)
        connection.exec_driver_sql(f"LISTEN {quoted}")

    def close(self) -> None:
        """Stop listening."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Not back to the pool: whoever got it there would go on listening.
            connection.invalidate()
            connection.close()
