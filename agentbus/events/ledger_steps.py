"""Durable steps in the application's database: a step and its effect commit together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from agentbus.core import envelope, names
from agentbus.events import databases
from agentbus.events.databases import now_ms
from agentbus.queues.durable_steps import KEPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.events.ledger import Ledger
    from agentbus.queues.delivery import AnyDelivery

P = ParamSpec("P")
R = TypeVar("R")
# Seconds between two cleanups by one object.
_CLEANED = 3600.0


class LedgerSteps:
    """Keeps the steps of tasks in a table of a ledger's database, `<prefix>steps`.

    Any number of processes and threads may use the same table. A row is removed 30 days after its step.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._cleaned = time.monotonic()
        text = sa.Text()
        self.metadata = sa.MetaData(schema=ledger.metadata.schema)
        self.table = sa.Table(
            f"{ledger.prefix}steps",
            self.metadata,
            *(
                sa.Column(name, text, primary_key=True)
                for name in ("project", "task_id", "grp", "name")
            ),
            # NULL while the transaction of the step runs.
            sa.Column("result", text),
            sa.Column("created_at", sa.BigInteger(), nullable=False, server_default=now_ms()),
        )

    def create(self) -> None:
        """Create the table if it is missing. Raises `BackendUnavailable`."""
        with self._ledger.committing("its table of steps was created") as connection:
            if self._ledger.dialect == databases.POSTGRESQL:
                # Take a lock: two processes that start at once would both find no table, and one of
                # them would fail.
                key = sa.func.hashtext(self.table.fullname)
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key))).all()
            self.metadata.create_all(connection)

    def step(
        self,
        delivery: AnyDelivery,
        name: str,
        function: Callable[Concatenate[sa.Connection, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function with a connection, exactly once, as a step of the delivery's task.

        Its changes on the connection commit together with its result: a later or concurrent attempt
        gets the result without calling the function. The function must not commit. The result is
        returned after a round trip through JSON. Raises the function's exceptions, `InvalidPayload`
        for a result that is not JSON, and the database's errors.
        """
        names.name("step", name)
        scope, table = delivery._consumer.scope, self.table
        key = {
            "project": scope.keys.project,
            # Include the creation time: after a `clear`, the ids of delayed and dependent tasks
            # restart at `d1`.
            "task_id": f"{delivery.id} {delivery.created_at}",
            "grp": delivery.group,
            "name": name,
        }
        sql: Any = postgresql if self._ledger.dialect == databases.POSTGRESQL else sqlite
        here = [table.c[column] == value for column, value in key.items()]
        with self._ledger.transaction() as connection:
            # A concurrent attempt of the same step waits here until this one has ended.
            begin = sql.insert(table).values(key).on_conflict_do_nothing()
            if connection.execute(begin.returning(table.c.name)).first() is not None:
                result = function(connection, *args, **kwargs)
                data = envelope.encode(result, scope.max_body).decode()
                connection.execute(sa.update(table).where(*here).values(result=data))
            else:
                data = connection.execute(sa.select(table.c.result).where(*here)).scalar_one()
        self._clean()
        returned: R = orjson.loads(data)
        return returned

    def clean(self, seconds: float = KEPT) -> int:
        """Delete the rows of steps older than a number of seconds, and return their number."""
        old = self.table.c.created_at < now_ms() - round(seconds * 1000)
        with self._ledger.committing("old steps were removed") as connection:
            return connection.execute(sa.delete(self.table).where(old)).rowcount

    def _clean(self) -> None:
        if time.monotonic() > self._cleaned + _CLEANED:
            self._cleaned = time.monotonic()
            self.clean()
