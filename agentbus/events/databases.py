"""Differences between SQLite and PostgreSQL: clocks, beginning transactions, and errors."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from agentbus.core.errors import BackendUnavailable, ConfigError, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Iterator

SQLITE, POSTGRESQL = "sqlite", "postgresql"
_WRONG = (
    *(r'FATAL: +(database|role) ".*" does not exist', "FATAL: +password authentication failed"),
    *(
        "FATAL: +no pg_hba.conf entry",
        "^file is not a database",
        "^attempt to write a readonly database",
    ),
)


class _Expression(FunctionElement[int]):
    """An integer expression with a separate SQL text for each database."""

    type = sa.BigInteger()
    sql: ClassVar[dict[str, str]]


class now_ms(_Expression):  # noqa: N801 (it is used as an SQL function is)
    """The database's clock in ms since 1970, the only clock for leases and ages."""

    inherit_cache = True
    sql: ClassVar[dict[str, str]] = {
        SQLITE: "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER))",
        # Do not use the transaction's start time: leases are also checked in the middle of a
        # transaction.
        POSTGRESQL: "(CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT))",
    }


class transaction_id(_Expression):  # noqa: N801
    """The id of the current transaction in PostgreSQL; a different id shows that it has ended."""

    inherit_cache = True
    # SQLite has no transaction ids; the guard uses a savepoint instead.
    sql: ClassVar[dict[str, str]] = {
        SQLITE: "0",
        POSTGRESQL: "CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)",
    }


@compiles(_Expression)
def _compiled(element: _Expression, compiler: Any, **_options: Any) -> str:
    return element.sql[compiler.dialect.name]


def insert(dialect: str, table: sa.Table) -> Any:
    """Return an INSERT that supports ON CONFLICT."""
    return (postgresql if dialect == POSTGRESQL else sqlite).insert(table)


def begin(connection: sa.Connection) -> sa.Connection:
    """Begin a transaction that cannot fail with a conflict; return its connection.

    In SQLite it takes the write lock at once: a transaction that first reads, and writes after
    another transaction's write, would fail. In PostgreSQL each statement sees all committed rows.
    """
    if connection.dialect.name == POSTGRESQL:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        connection.begin()
        return connection
    connection.begin()
    if connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
        # The application's engine sends its own BEGIN; the transaction is still empty.
        connection.exec_driver_sql("ROLLBACK")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    return connection


@contextlib.contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a block in one transaction: committed at the end, rolled back if it raises."""
    connection = engine.connect()
    try:
        connection = begin(connection)
        yield connection
        connection.commit()
    except BaseException as error:
        if _read_only(error):
            # The server may be a primary that became a standby: remove the connection from the
            # pool.
            connection.invalidate()
        else:
            abandon(connection)
        raise
    finally:
        connection.close()


def abandon(connection: sa.Connection) -> None:
    """Roll back, regardless of the state in which a handler left the connection."""
    try:
        connection.rollback()
        # A handler may have ended SQLAlchemy's transaction, while that of the database continues.
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.rollback()
    except Exception:  # noqa: BLE001 (the first error says more)
        connection.invalidate()


@contextlib.contextmanager
def translated(engine: sa.Engine, doing: str) -> Iterator[None]:
    """Convert database errors to ours, without the URL's password; `doing` names the action."""
    try:
        yield
    except exc.DBAPIError as error:
        place = where(engine)
        said = str(error.orig).strip().partition("\n")[0]
        if missing(error):
            raise ConfigError(
                f"{place} does not have the tables of a ledger ({said})",
                hint="call Ledger.create() first",
                shell_hint="run 'agentbus outbox init'",
            ) from error
        if _misconfigured(error):
            raise ConfigError(
                f"{place} cannot be used ({said})",
                hint="correct its URL, or the user's permissions",
            ) from error
        if (
            isinstance(error, (exc.OperationalError, exc.InterfaceError))
            or error.connection_invalidated
            or _read_only(error)
        ):
            raise BackendUnavailable(
                f"{place} did not serve while {doing} ({said})",
                hint="see whether it runs and takes writes, and whether another holds its lock",
            ) from error
        if error.statement is None and isinstance(error, exc.ProgrammingError):
            # The driver raises this on connecting if it does not know an option in the URL.
            raise ConfigError(
                f"{place} cannot be connected to ({said})", hint="correct the options in its URL"
            ) from error
        if isinstance(error, exc.DataError):
            raise _too_large(engine, doing, said) from error
        raise
    except OverflowError as error:
        raise _too_large(engine, doing, str(error)) from error
    except exc.TimeoutError as error:
        raise BackendUnavailable(
            f"no connection to {where(engine)} became free while {doing}",
            hint="give the engine a larger pool",
        ) from error


def _too_large(engine: sa.Engine, doing: str, said: str) -> Unhealthy:
    return Unhealthy(
        f"{where(engine)} cannot hold a value that was read while {doing} ({said})",
        hint="another program wrote an entry or a row with a number beyond 63 bits: remove it",
    )


def missing(error: exc.DBAPIError) -> bool:
    """Tell whether an error means that a table or column is missing."""
    state = getattr(error.orig, "sqlstate", None)
    text = str(error.orig)
    return state in ("42P01", "42703", "3F000") or text.startswith(
        ("no such table", "no such column")
    )


def _read_only(error: BaseException) -> bool:
    """Tell whether an error means that PostgreSQL rejects writes, as a standby or by a setting."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) == "25006"


def _misconfigured(error: exc.DBAPIError) -> bool:
    """Tell whether a retry is useless: a wrong name or password, no permission, no database."""
    if getattr(error.orig, "sqlstate", None) in ("28000", "28P01", "3D000", "42501"):
        return True
    # SQLite's errors and those of connecting to PostgreSQL have no code.
    return any(re.search(words, str(error.orig)) for words in _WRONG)


def where(engine: sa.Engine) -> str:
    """Return a database's name for messages, without user and password."""
    url = engine.url
    if engine.dialect.name == SQLITE:
        return f"the database {url.database or ':memory:'!a}"
    host = url.host or "localhost"
    return f"the database {url.database!a} at {host}:{url.port or 5432}"
