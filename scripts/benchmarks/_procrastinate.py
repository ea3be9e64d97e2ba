"""The same work by procrastinate, a job queue in PostgreSQL: what the benchmark of events stands beside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from agentbus.events import Ledger


class Procrastinate:
    """Jobs that are deferred in the application's transaction, and run one after the other.

    A job writes its effect in its own transaction: procrastinate takes and ends jobs in others.
    """

    def __init__(self, ledger: Ledger, orders: sa.Table, effects: sa.Table) -> None:
        self._engine = ledger.engine
        self._orders, self._effects = orders, effects
        self._place = str(
            ledger.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        )
        with self._sending() as app:
            app.schema_manager.apply_schema()

    def send(self, number: int, body: dict[str, Any]) -> None:
        """Write a row of business and defer a job, in a transaction each."""
        with self._sending() as app:
            task = app.configure_task
            for _ in range(number):
                with Session(self._engine) as session:
                    session.execute(sa.insert(self._orders).values(body="paid"))
                    raw = session.connection().connection.driver_connection
                    task("placed", connection=raw).defer(uuid="x", body=body)
                    session.commit()

    def consume(self, number: int) -> None:
        """Run so many jobs, one at a time, and delete each."""
        app = App(connector=PsycopgConnector(conninfo=self._place))
        done = 0

        @app.task(name="placed")
        def placed(uuid: str, body: dict[str, Any]) -> None:
            nonlocal done
            with Session(self._engine) as session:
                session.execute(sa.insert(self._effects).values(uuid=uuid))
                session.commit()
            done += 1

        async def work() -> None:
            async with app.open_async():
                await app.run_worker_async(
                    wait=False, delete_jobs="always", install_signal_handlers=False
                )

        asyncio.run(work())
        assert done == number, done

    def _sending(self) -> App:
        app = App(connector=SyncPsycopgConnector(conninfo=self._place))
        return app.open()
