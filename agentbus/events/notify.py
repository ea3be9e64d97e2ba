"""Waits for new rows in the outbox, using PostgreSQL's notifications as hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.events.databases import POSTGRESQL

if TYPE_CHECKING:
    from agentbus.core.signals import StopEvent
    from agentbus.events.ledger import Ledger

# The polling interval without notifications, in seconds.
_GLANCE = 0.1


class OutboxNotifications:
    """Waits for new rows by LISTEN; polls without PostgreSQL or when a connection fails."""

    def __init__(self, ledger: Ledger, stopped: StopEvent) -> None:
        self._ledger = ledger
        self._stopped = stopped
        self._connection: sa.Connection | None = None

    def wait(self, seconds: float) -> None:
        """Return when there may be new rows, or after `seconds`."""
        if self._ledger.dialect != POSTGRESQL:
            self._stopped.wait(min(seconds, _GLANCE))
            return
        try:
            if self._connection is None:
                # Rows committed before LISTEN caused no notification, so the caller looks for them
                # first.
                self._listen()
                return
            raw: Any = self._connection.connection.driver_connection
            for _ in raw.notifies(timeout=seconds, stop_after=1):
                return
        except Exception:  # noqa: BLE001 (polling continues without notifications)
            self.close()
            self._stopped.wait(seconds)

    def _listen(self) -> None:
        connection = self._ledger.engine.connect()
        self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        name = self._ledger.tables.channel
        quoted = connection.dialect.identifier_preparer.quote_identifier(name)
        connection.exec_driver_sql(f"LISTEN {quoted}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Keep the connection out of the pool, where its next user would still listen.
            connection.invalidate()
            connection.close()
