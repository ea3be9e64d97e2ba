"""The ledger: tables in the application's own database, and transactions on them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from agentbus.core.errors import ConfigError
from agentbus.events import databases, leases
from agentbus.events.databases import now_ms
from agentbus.events.tables import sealed, statements, tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from agentbus.events.tables import Tables


class Ledger:
    """The tables of events in the application's own database.

    `bind` is an engine, or an existing connection or session of the application: `create` and
    `check` then join its transaction, and all other methods use its engine. `schema` is a
    PostgreSQL schema. Raises `ConfigError` unless the database is PostgreSQL or SQLite.
    """

    def __init__(
        self,
        bind: sa.Engine | sa.Connection | Session,
        prefix: str = "agentbus_",
        schema: str | None = None,
    ) -> None:
        source: Any = bind
        self._joined: sa.Connection | Session | None = None
        if isinstance(source, scoped_session):
            source = source()
        if isinstance(source, Session):
            self._joined, source = source, source.get_bind()
        if isinstance(source, sa.Connection):
            self._joined, source = self._joined or source, source.engine
        if not isinstance(source, sa.Engine):
            raise ConfigError(
                f"a ledger cannot be made from a {type(bind).__name__}",
                hint="give it an Engine, a Connection or a Session of SQLAlchemy, not an asynchronous one",
            )
        self.engine: sa.Engine = source
        self.dialect = source.dialect.name
        if self.dialect not in (databases.SQLITE, databases.POSTGRESQL):
            raise ConfigError(
                f"a ledger cannot lie in {self.dialect}",
                hint="use PostgreSQL, or SQLite where one host suffices",
            )
        self.prefix = prefix
        self.tables: Tables = tables(prefix, schema)
        self._identity: int | None = None

    @property
    def metadata(self) -> sa.MetaData:
        """The tables as SQLAlchemy's metadata, for migrations."""
        return self.tables.metadata

    def transaction(self) -> AbstractContextManager[sa.Connection]:
        """Run a block in its own transaction: committed at the end, rolled back if it raises.

        In SQLite it holds the write lock from the start; in PostgreSQL it is READ COMMITTED.
        """
        return databases.transaction(self.engine)

    @property
    def place(self) -> str:
        """The database's path, or host:port/name, without user and password."""
        url = self.engine.url
        if self.dialect == databases.SQLITE:
            return url.database or ":memory:"
        return f"{url.host or 'localhost'}:{url.port or 5432}/{url.database}"

    @contextmanager
    def committing(self, doing: str) -> Iterator[sa.Connection]:
        """Run a block as `transaction` does, converting the database's errors to ours."""
        with databases.translated(self.engine, doing), self.transaction() as connection:
            yield connection

    @contextmanager
    def reading(self, doing: str = "it was read") -> Iterator[sa.Connection]:
        """Run a block that only reads, without a transaction, converting errors to ours."""
        with databases.translated(self.engine, doing), self.engine.connect() as connection:
            yield connection

    def create(self) -> None:
        """Create the tables that are missing. Raises `BackendUnavailable`."""
        with databases.translated(self.engine, "its tables were created"):
            if self._joined is not None:
                self.metadata.create_all(_connection(self._joined))
                return
            with self.transaction() as connection:
                if self.dialect == databases.POSTGRESQL:
                    # Take a lock: two processes that start at once would both find no tables, and
                    # one of them would fail.
                    key = sa.func.hashtext(self.tables.channel)
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key))).all()
                self.metadata.create_all(connection)

    def statements(self) -> list[str]:
        """Return the SQL that `create` runs in an empty database, for migrations, without connecting."""
        return statements(self.tables, self.prefix, self.engine.dialect)

    def missing(self) -> list[str]:
        """Return the names of the tables that are missing."""
        with self.reading("its tables were inspected") as connection:
            look = sa.inspect(connection)
            return [
                table.name
                for table in self.metadata.sorted_tables
                if not look.has_table(table.name, schema=table.schema)
            ]

    def check(self) -> None:
        """Raise `ConfigError`, which names each difference, unless the tables are as expected."""
        doing = "its tables were inspected"
        if self._joined is not None:
            with databases.translated(self.engine, doing):
                wrong = self._differences(_connection(self._joined))
        else:
            with self.reading(doing) as connection:
                wrong = self._differences(connection)
        if wrong:
            raise ConfigError(
                f"the ledger in {databases.where(self.engine)} is not as it should be: "
                + "; ".join(wrong),
                hint="migrate it, or call Ledger.create() where tables are missing",
                shell_hint="migrate it, or run 'agentbus outbox init' where tables are missing",
            )

    def identity(self) -> int:
        """Return the number that identifies this ledger; the first call creates it."""
        if self._identity is None:
            with self.committing("it was identified") as connection:
                self._identity = leases.identity(connection, self.tables)
        return self._identity

    def renew_identity(self) -> int:
        """Give the ledger another number, as a copy of a database needs; returns the number.

        Call it while none of its relays and consumers runs.
        """
        with self.committing("it got another identity") as connection:
            self._identity = leases.renew_identity(connection, self.tables)
        return self._identity

    def now(self) -> int:
        """Return the time by the database's clock, in ms since 1970."""
        with self.reading("its clock was read") as connection:
            time_ms: int = connection.execute(sa.select(now_ms())).scalar_one()
        return time_ms

    def _differences(self, connection: sa.Connection) -> list[str]:
        look = sa.inspect(connection)
        wrong = []
        for table in self.metadata.sorted_tables:
            if not look.has_table(table.name, schema=table.schema):
                wrong.append(f"the table {table.name!r} is missing")
                continue
            there = {
                column["name"]: column for column in look.get_columns(table.name, table.schema)
            }
            for column in table.columns:
                existing = there.get(column.name)
                if existing is None:
                    wrong.append(f"the column {table.name}.{column.name} is missing")
                elif not _fits(column.type, existing["type"]):
                    wrong.append(f"the column {table.name}.{column.name} is {existing['type']}")
            keys = look.get_pk_constraint(table.name, table.schema)["constrained_columns"]
            if list(keys) != [column.name for column in table.primary_key.columns]:
                wrong.append(f"the primary key of {table.name!r} is {', '.join(keys) or 'missing'}")
            wrong += [
                f"the columns {', '.join(group)} of {table.name!r} are not unique"
                for group in _unique(table) - _uniquely(look, table)
            ]
        if wrong or self.dialect != databases.POSTGRESQL:
            return wrong
        if sealed(connection, self.tables, self.prefix):
            return []
        return [f"the trigger {self.prefix}sealed is missing"]


def _connection(joined: sa.Connection | Session) -> sa.Connection:
    return joined.connection() if isinstance(joined, Session) else joined


def _fits(wanted: sa.types.TypeEngine[Any], actual: sa.types.TypeEngine[Any]) -> bool:
    if isinstance(wanted, sa.Integer):
        # SQLite's INTEGER holds 64 bits; in PostgreSQL only BIGINT does.
        return isinstance(actual, sa.Integer)
    return isinstance(actual, sa.String)


def _unique(table: sa.Table) -> set[tuple[str, ...]]:
    return {
        tuple(column.name for column in each.columns)
        for each in table.constraints
        if isinstance(each, sa.UniqueConstraint)
    }


def _uniquely(look: sa.Inspector, table: sa.Table) -> set[tuple[str, ...]]:
    groups = {
        tuple(each["column_names"])
        for each in look.get_unique_constraints(table.name, table.schema)
    }
    for index in look.get_indexes(table.name, table.schema):
        if index["unique"]:
            groups.add(tuple(name or "" for name in index["column_names"]))
    return groups
