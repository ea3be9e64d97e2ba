"""Keeps a handler from ending the transaction of its consumer.

The handler's changes must be committed together with the row of the processed event and the
checkpoint, or not at all. Statements that would end the transaction are refused before the database
gets them. If one is executed nevertheless, the ledger's trigger (PostgreSQL) or a savepoint
(SQLite) detects it, and nothing is committed.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from agentbus.core.errors import CommitInTransactionError, HandlerFailed
from agentbus.events.databases import POSTGRESQL
from agentbus.events.tables import UNSEALED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_SAVEPOINT = "agentbus_guard"
_INFO = "agentbus_guard"
_ENDS = re.compile(
    r"\s*(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:WORK\s+|"
    r"TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE,
)
_SUSPECT = re.compile(r"\b(?:COMMIT|END|ABORT|BEGIN|START|PREPARE|ROLLBACK)\b", re.IGNORECASE)
# Matches string literals, quoted names, function bodies and comments, whose words are not keywords.
_QUOTED = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.DOTALL
)


class HandlerSession(Session):
    """A handler's session: in the consumer's transaction, which it cannot end.

    `commit`, `rollback`, `close`, `invalidate`, `reset` and `prepare` raise `CommitInTransactionError`.
    """

    guard: Guard


def _refusing(name: str) -> Callable[[HandlerSession], NoReturn]:
    return lambda session: session.guard.refuse(f"session.{name}()")


for _name in ("commit", "rollback", "close", "invalidate", "reset", "prepare"):
    setattr(HandlerSession, _name, _refusing(_name))


@event.listens_for(HandlerSession, "before_commit")
def _before_commit(session: HandlerSession) -> None:
    # Allow the end of a nested block, which is the handler's own; refuse the end of the
    # transaction.
    if not session.in_nested_transaction() and not session.guard.done:
        session.guard.refuse("session.begin()")


class Guard:
    """Guards one transaction while a handler runs: `with Guard(connection, limit) as guard`.

    At the end it raises `CommitInTransactionError` if a statement was refused, and `HandlerFailed` if the
    handler ignored an SQL error, even if it caught the exceptions.
    """

    def __init__(self, connection: sa.Connection, limit: TimeLimit) -> None:
        self._connection = connection
        self._limit = limit
        self._pooled: Any = connection.connection
        self._raw: Any = self._pooled.driver_connection
        self._postgres = connection.dialect.name == POSTGRESQL
        self._refused: str | None = None
        self._swallowed: BaseException | None = None
        self._base: Any = None
        self.done = False

    def __enter__(self) -> Self:
        connection = self._connection
        mode: Any = "rollback_only"
        if self._postgres:
            _take(self._raw, self)
        else:
            # In SQLite a transaction continues after a failed statement; the session's own
            # savepoint limits the rollback of a failed flush.
            mode = "create_savepoint"
            connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        self.session = HandlerSession(bind=connection, join_transaction_mode=mode)
        self.session.guard = self
        if not self._postgres:
            self.session.connection()
            self._base = connection.get_nested_transaction()
            _watch(connection.engine)
            connection.info[_INFO] = self
            self._raw.set_authorizer(self._authorize)
        self._keep(let_go=False)
        for name in _CONNECTIONS:
            vars(connection)[name] = functools.partial(self._unless_gone, connection, name)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self._refused is None and self.session.is_active:
                self.session.flush()
        except CommitInTransactionError:
            raise
        except Exception as failure:
            self._judge(failure)
            raise
        finally:
            self.done = True
            self._release()
        if error is not None and not isinstance(error, CommitInTransactionError):
            self._judge(error)
        if error is None:
            self._judge(None)
            self._intact()

    def refuse(self, what: str) -> NoReturn:
        """Record that a handler tried to end the transaction, and raise `CommitInTransactionError`."""
        self._refused = self._refused or what
        raise _refusal(what)

    def _unless_gone(self, of: Any, name: str, *args: Any, **options: Any) -> Any:
        """Refuse the call, unless the connection is lost: SQLAlchemy then discards it."""
        if not self._gone:
            self.refuse(f"the connection's {name}()")
        return getattr(type(of), name)(of, *args, **options)

    @property
    def _gone(self) -> bool:
        return self._postgres and self._refused is None and self._raw.closed

    def note(self, error: BaseException) -> None:
        """Record an SQL error, unless it occurred within one of the handler's own savepoints."""
        nested = self._connection.get_nested_transaction()
        if nested is None or nested is self._base:
            self._swallowed = self._swallowed or error

    def failed(self, error: BaseException) -> None:
        """Record a PostgreSQL driver's error of a statement, even if the handler ignores it."""
        self._limit.look(error)

    def _judge(self, error: BaseException | None) -> None:
        if self._gone:
            if self._limit.exceeded is not None:
                raise self._limit.exceeded from error
            # The lost connection is the cause, whatever the handler raised.
            raise sa.exc.OperationalError(
                "(in a handler)", None, ConnectionResetError(_LOST), connection_invalidated=True
            ) from error
        if getattr(getattr(error, "orig", error), "sqlstate", None) == UNSEALED:
            self._refused = self._refused or "COMMIT"
        if self._refused is not None:
            raise _refusal(self._refused) from error
        if error is None and (self._swallowed is not None or not self.session.is_active):
            raise _swallowed(self._swallowed) from self._swallowed

    def _intact(self) -> None:
        """Raise an error unless the handler's transaction is still open."""
        if self._postgres:
            if self._raw.info.transaction_status.name == "INERROR":
                raise _swallowed(None)
            if self._raw.info.transaction_status.name != "INTRANS":
                raise ended()
            return
        try:
            self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except sa.exc.DBAPIError as error:
            raise ended() from error

    def _release(self) -> None:
        for name in _CONNECTIONS:
            vars(self._connection).pop(name, None)
        self._keep(let_go=True)
        if self._postgres:
            _give_back(self._raw)
        else:
            self._connection.info.pop(_INFO, None)
            try:
                self._raw.set_authorizer(None)
            except sqlite3.Error:
                # A closed connection cannot commit anything.
                self._refused = self._refused or "the connection's close()"

    def _keep(self, *, let_go: bool) -> None:
        """Keep the connection out of the pool, where another user would get our open transaction.

        SQLAlchemy counts its references; a handler's `close()` removes one of many, which is detected.
        """
        if not hasattr(self._pooled, "_counter"):
            return
        if not let_go:
            self._pooled._counter += _MANY
            return
        self._pooled._counter -= _MANY
        if self._pooled._counter < 1:
            self._pooled._counter = 1
            self._refused = self._refused or "the pooled connection's close()"

    def _authorize(self, action: int, first: Any, second: Any, *_rest: Any) -> int:
        """SQLite's authorizer, called when a statement is prepared. It must not raise."""
        if action == sqlite3.SQLITE_TRANSACTION:
            self._refused = self._refused or first
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_SAVEPOINT and second == _SAVEPOINT:
            self._refused = self._refused or f"{first} {second}"
            return sqlite3.SQLITE_DENY
        if action in _WRITES and not self._raw.in_transaction:
            # An INSERT OR ROLLBACK ended the transaction: the next write would be committed at once.
            self._refused = self._refused or "OR ROLLBACK"
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


_MANY = 1_000_000
# SQLSTATEs for a transaction that was idle, or open, for longer than PostgreSQL's settings allow.
_OVERDUE = ("25P03", "25P04")
_LOST = "the connection was lost while a handler ran"
_CONNECTIONS = ("commit", "rollback", "close", "invalidate", "detach")
_WRITES = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)


def ends(statement: str) -> bool:
    """Tell whether a statement in a text would end a transaction or begin another."""
    if not _SUSPECT.search(statement):
        return False
    return any(_ENDS.match(part) for part in _QUOTED.sub(" ", statement).split(";"))


# -- PostgreSQL: methods of the driver's connection are replaced while the handler runs ----------


@functools.cache
def _guarded(kind: Any) -> Any:
    """Return a subclass of a cursor class that refuses commands that end a transaction."""

    class Cursor(kind):  # type: ignore[misc]
        pass

    def guarded(name: str) -> Callable[..., Any]:
        def send(self: Any, query: Any, *args: Any, **options: Any) -> Any:
            guard = _look(query, self.connection)
            try:
                return getattr(super(Cursor, self), name)(query, *args, **options)
            except Exception as error:
                if guard is not None:
                    guard.failed(error)
                raise

        return send

    for name in ("execute", "executemany", "stream"):
        setattr(Cursor, name, guarded(name))
    return Cursor


def _take(raw: Any, guard: Guard) -> None:
    def no(what: str) -> Callable[..., NoReturn]:
        return lambda *_args, **_options: guard.refuse(what)

    def forget() -> None:
        # SQLAlchemy rolls back after a failed flush. The transaction can then not be committed, and
        # only the consumer may end it; a handler that continues must not begin a new transaction.
        guard.note(RuntimeError("the transaction was rolled back"))

    kind = raw.cursor_factory
    vars(raw).update(
        {name: no(f"the connection's {name}()") for name in _REFUSED},
        cursor_factory=_guarded(kind),
        rollback=forget,
        close=functools.partial(guard._unless_gone, raw, "close"),
        agentbus_guard=(guard, kind),
    )


_REFUSED = ("commit", "tpc_begin", "tpc_commit", "tpc_prepare", "tpc_rollback")


def _give_back(raw: Any) -> None:
    attributes = vars(raw)
    for name in (*_REFUSED, "rollback", "close"):
        attributes.pop(name, None)
    taken = attributes.pop("agentbus_guard", None)
    if taken is not None:
        raw.cursor_factory = taken[1]


def _look(query: Any, raw: Any) -> Guard | None:
    """Refuse a command that ends the transaction; return the guard if its handler still runs."""
    taken = vars(raw).get("agentbus_guard")
    if taken is None:
        return None
    guard: Guard = taken[0]
    if hasattr(query, "as_string"):
        query = query.as_string(raw)
    if isinstance(query, bytes):
        query = query.decode("utf-8", "replace")
    if isinstance(query, str) and ends(query):
        guard.refuse(query.strip()[:40])
    return guard


# -- SQLite: a transaction continues after an error, so that errors must be recorded here --------


_WATCHED: weakref.WeakSet[sa.Engine] = weakref.WeakSet()


def _watch(engine: sa.Engine) -> None:
    if engine not in _WATCHED:
        event.listen(engine, "handle_error", _failed)
        _WATCHED.add(engine)


def _failed(context: Any) -> None:
    if context.connection is not None:
        guard = context.connection.info.get(_INFO)
        if guard is not None:
            guard.note(context.original_exception)


def _refusal(what: str) -> CommitInTransactionError:
    return CommitInTransactionError(
        f"a handler tried to end its consumer's transaction ({what})",
        hint="return, and the consumer commits; raise, and it rolls back. For a part that may fail use"
        " 'with session.begin_nested():'; for a handler that commits by itself Guarantee.AT_LEAST_ONCE",
    )


def _swallowed(error: BaseException | None) -> HandlerFailed:
    said = "" if error is None else f" ({str(error).strip().partition(chr(10))[0]})"
    return HandlerFailed(
        f"the handler returned although one of its SQL statements had failed{said}",
        hint="let the error propagate; for a part that may fail use 'with session.begin_nested():'",
    )


class TimeLimit:
    """Records that PostgreSQL ended a transaction because it was idle, or open, for too long.

    The server's message is the error of the next statement. If the driver reads it together with
    the reply to the previous statement, it is a notice, and the next statement finds a closed
    connection.
    """

    def __init__(self) -> None:
        self._raw: Any = None
        self.exceeded: HandlerFailed | None = None

    def watch(self, connection: sa.Connection) -> None:
        """Record the server's notices on a connection, until `close`."""
        if connection.dialect.name == POSTGRESQL:
            self._raw = connection.connection.driver_connection
            self._raw.add_notice_handler(self._noticed)

    def close(self) -> None:
        if self._raw is not None:
            self._raw.remove_notice_handler(self._noticed)

    def look(self, error: BaseException) -> None:
        """Record an error of SQLAlchemy or the driver if it is the server's message."""
        error = getattr(error, "orig", None) or error
        self._record(getattr(error, "sqlstate", None), str(error).strip())

    def _noticed(self, notice: Any) -> None:
        self._record(notice.sqlstate, notice.message_primary)

    def _record(self, state: str | None, message: str) -> None:
        if state in _OVERDUE and self.exceeded is None:
            self.exceeded = HandlerFailed(
                f"the handler took longer than the database allows for a transaction ({message})",
                hint="do slow work outside of the transaction, as with Guarantee.AT_LEAST_ONCE, or raise"
                " idle_in_transaction_session_timeout",
            )


def ended() -> CommitInTransactionError:
    """Return the error for a transaction other than the one given to the handler."""
    return _refusal("a command to the connection itself")
