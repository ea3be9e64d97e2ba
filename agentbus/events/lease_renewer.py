"""Renews a lease while a handler runs longer than the lease lasts."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.core.errors import StaleLease
from agentbus.events import leases
from agentbus.events.databases import POSTGRESQL

if TYPE_CHECKING:
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger


class LeaseRenewer:
    """Renews a lease from its own thread and connection, until it is stopped or the lease is lost.

    It does nothing with SQLite: there a handler holds the write lock, and no other process can acquire or
    renew its lease. A frozen process does not renew its lease.
    """

    def __init__(self, ledger: Ledger, held: HeldLease, seconds: float, every: float) -> None:
        self._ledger = ledger
        self._held = held
        self._seconds = seconds
        self._every = every
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if ledger.dialect == POSTGRESQL:
            name = f"lease-{held.role}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                # A failure is retried long before the lease expires.
                with (
                    contextlib.suppress(sa.exc.SQLAlchemyError),
                    self._ledger.transaction() as connection,
                ):
                    leases.renew(connection, self._ledger.tables, self._held, self._seconds)
            except StaleLease:
                return
