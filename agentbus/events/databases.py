"""What differs between SQLite and PostgreSQL: the clock, how a transaction begins, what errors mean."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from agentbus.core.errors import BackendUnavailable, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

SQLITE, POSTGRESQL = "sqlite", "postgresql"


class now_ms(FunctionElement[int]):  # noqa: N801 (it stands in SQL as a function does)
    """The database's own clock, in ms since 1970: the only one that leases and ages are told by."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_ms, SQLITE)
def _sqlite_clock(_element: now_ms, _compiler: Any, **_options: Any) -> str:
    return "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER))"


@compiles(now_ms, POSTGRESQL)
def _postgresql_clock(_element: now_ms, _compiler: Any, **_options: Any) -> str:
    # Not the transaction's time: a lease is also looked at in the middle of a transaction.
    return "(CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT))"


class transaction_id(FunctionElement[int]):  # noqa: N801
    """The id of this very transaction in PostgreSQL, by which one learns that it was ended."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(transaction_id, SQLITE)
def _sqlite_transaction(_element: transaction_id, _compiler: Any, **_options: Any) -> str:
    # SQLite has no such number; there a savepoint tells.
    return "0"


@compiles(transaction_id, POSTGRESQL)
def _postgresql_transaction(_element: transaction_id, _compiler: Any, **_options: Any) -> str:
    return "CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)"


def known(dialect: str) -> str:
    """Return the name of a database that can keep a ledger. Raises `ConfigError`."""
    if dialect not in (SQLITE, POSTGRESQL):
        raise ConfigError(
            f"a ledger cannot lie in {dialect}",
            hint="use PostgreSQL, or SQLite where one host suffices",
        )
    return dialect


def insert(dialect: str, table: sa.Table) -> Any:
    """Return an INSERT that knows ON CONFLICT."""
    return (postgresql if dialect == POSTGRESQL else sqlite).insert(table)


def begin(connection: sa.Connection) -> sa.Connection:
    """Begin a transaction that nothing can make us give up half-way; return its connection.

    In SQLite it takes the write lock at once: one that begins by reading may find, when it writes, that
    another wrote since, and no waiting helps then. In PostgreSQL each statement sees what is committed.
    """
    if connection.dialect.name == POSTGRESQL:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        connection.begin()
        return connection
    connection.begin()
    if connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
        # The application's engine has a plain BEGIN of its own, under which nothing was done yet.
        connection.exec_driver_sql("ROLLBACK")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    return connection


@contextlib.contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a block in one transaction: committed at its end, rolled back where it raises."""
    connection = engine.connect()
    try:
        connection = begin(connection)
        yield connection
        connection.commit()
    except BaseException:
        abandon(connection)
        raise
    finally:
        connection.close()


def abandon(connection: sa.Connection) -> None:
    """Roll back, whatever state a handler left the connection in."""
    try:
        connection.rollback()
        # A handler may have ended what SQLAlchemy knows of; the database's transaction goes on then.
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.rollback()
    except Exception:  # noqa: BLE001 (the error that brought us here says more)
        connection.invalidate()


@contextlib.contextmanager
def told(engine: sa.Engine, doing: str) -> Iterator[None]:
    """Turn the database's errors into ours, without what a URL may hold as a password."""
    try:
        yield
    except exc.DBAPIError as error:
        place = where(engine)
        said = str(error.orig).strip().partition("\n")[0]
        if missing(error):
            raise ConfigError(
                f"{place} has not the tables of a ledger ({said})",
                hint="call Ledger.create() first",
            ) from error
        if isinstance(error, (exc.OperationalError, exc.InterfaceError)) or (
            error.connection_invalidated
        ):
            raise BackendUnavailable(
                f"{place} did not serve while {doing} ({said})",
                hint="see whether it runs, and whether another holds its lock",
            ) from error
        if error.statement is None and isinstance(error, exc.ProgrammingError):
            # It came from connecting: an option of the URL that the driver does not know.
            raise ConfigError(
                f"{place} cannot be connected to ({said})", hint="correct the options in its URL"
            ) from error
        raise
    except exc.TimeoutError as error:
        raise BackendUnavailable(
            f"no connection to {where(engine)} became free while {doing}",
            hint="give the engine a larger pool",
        ) from error


def missing(error: exc.DBAPIError) -> bool:
    """Tell whether an error means that a table or column is not there."""
    state = getattr(error.orig, "sqlstate", None)
    text = str(error.orig)
    return state in ("42P01", "42703", "3F000") or text.startswith(
        ("no such table", "no such column")
    )


def where(engine: sa.Engine) -> str:
    """Return how messages call a database: without its user and password."""
    url = engine.url
    if engine.dialect.name == SQLITE:
        return f"the database {url.database or ':memory:'!a}"
    host = url.host or "localhost"
    return f"the database {url.database!a} at {host}:{url.port or 5432}"
