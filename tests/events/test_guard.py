"""The guard: a handler cannot end the transaction that its consumer acts in, whatever it tries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agentbus.events import (
    CommitInTransactionError,
    Consumer,
    HandlerFailed,
    Relay,
    register,
)
from agentbus.events.guard import ends
from tests.events.shop import STREAM, act, effects, rows, send
from tests.tiers import nightly


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    name: Mapped[str] = mapped_column(primary_key=True)


def raw(session):
    return session.connection().connection.driver_connection


def _with(entered) -> None:
    with entered:
        pass


# By what a handler may try to end the transaction, on either database.
BYPASSES = {
    "session.commit": lambda s: s.commit(),
    "session.rollback": lambda s: s.rollback(),
    "session.close": lambda s: s.close(),
    "session.invalidate": lambda s: s.invalidate(),
    "session.reset": lambda s: s.reset(),
    "session.prepare": lambda s: s.prepare(),
    "with session": _with,
    "text COMMIT": lambda s: s.execute(sa.text("COMMIT")),
    "text commit in a comment": lambda s: s.execute(sa.text("/* x */ commit -- now")),
    "text END": lambda s: s.execute(sa.text("END")),
    "text ROLLBACK": lambda s: s.execute(sa.text("ROLLBACK")),
    "text BEGIN": lambda s: s.execute(sa.text("BEGIN")),
    "driver sql": lambda s: s.connection().exec_driver_sql("COMMIT"),
    "connection.commit": lambda s: s.connection().commit(),
    "connection.rollback": lambda s: s.connection().rollback(),
    "connection.close": lambda s: s.connection().close(),
    "connection.invalidate": lambda s: s.connection().invalidate(),
    "connection.detach": lambda s: s.connection().detach(),
    "bind.commit": lambda s: s.get_bind().commit(),
    "transaction.commit": lambda s: s.connection().get_transaction().commit(),
    "pooled.commit": lambda s: s.connection().connection.commit(),
    "pooled.close": lambda s: s.connection().connection.close(),
    "raw.commit": lambda s: raw(s).commit(),
    "raw with": lambda s: _with(raw(s)),
    "raw.execute": lambda s: raw(s).execute("COMMIT"),
    "raw cursor": lambda s: raw(s).cursor().execute("COMMIT"),
    "raw.close": lambda s: raw(s).close(),
}
SQLITE = {
    "executescript": lambda s: raw(s).executescript("SELECT 1"),
    "isolation_level": lambda s: setattr(raw(s), "isolation_level", None),
    "release of ours": lambda s: raw(s).execute("RELEASE agentbus_guard"),
    "rollback to ours": lambda s: raw(s).execute("ROLLBACK TO agentbus_guard"),
}


def _beneath(session, command: bytes) -> None:
    raw(session).pgconn.exec_(command)


def _client_cursor(session) -> None:
    import psycopg

    psycopg.ClientCursor(raw(session)).execute("COMMIT")


def _composed(session) -> None:
    from psycopg import sql

    raw(session).execute(sql.SQL("COM") + sql.SQL("MIT"))


POSTGRESQL = {
    "several statements": lambda s: raw(s).execute("SELECT 1; COMMIT; BEGIN"),
    "bytes": lambda s: raw(s).execute(b"COMMIT"),
    "composed": _composed,
    "client cursor": _client_cursor,
    "libpq": lambda s: _beneath(s, b"COMMIT"),
    "libpq and a new one": lambda s: _beneath(s, b"COMMIT; BEGIN"),
    "libpq rollback": lambda s: _beneath(s, b"ROLLBACK"),
    "libpq rollback and a new one": lambda s: _beneath(s, b"ROLLBACK; BEGIN"),
    "commit and chain": lambda s: s.execute(sa.text("COMMIT AND CHAIN")),
    "abort": lambda s: s.execute(sa.text("ABORT")),
    "prepare transaction": lambda s: s.execute(sa.text("PREPARE TRANSACTION 'x'")),
    "a procedure": lambda s: s.execute(sa.text("DO $$ BEGIN COMMIT; END $$")),
    "autocommit": lambda s: setattr(raw(s), "autocommit", True),
    "constraints": lambda s: s.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE")),
}


@pytest.fixture
def ready(ledger, bus):
    """Return a function that runs a handler on one event, and returns the consumer."""
    with ledger.engine.begin() as connection:
        Base.metadata.create_all(connection)
        connection.execute(sa.insert(Stock).values(name="there"))
    relay = Relay(ledger, bus)
    send(ledger, "a")
    relay.run_once()
    relay.close()
    made: list[Consumer] = []

    def _run(handler) -> Consumer:
        made.append(Consumer(register(handler, STREAM, name="welcome"), ledger, bus))
        made[-1].run_once()
        return made[-1]

    yield _run
    for each in made:
        each.close()


def bypasses(ledger):
    return {**BYPASSES, **(POSTGRESQL if ledger.dialect == "postgresql" else SQLITE)}


def attempts() -> Iterator[Any]:
    """Yield each way on each database that has it, with its error raised and swallowed."""
    for database, ways in (("sqlite", BYPASSES | SQLITE), ("postgresql", BYPASSES | POSTGRESQL)):
        for how in ways:
            yield database, how, False
            # Autocommit PostgreSQL refuses, and goes on as if nothing were.
            if how != "autocommit":
                yield nightly(database, how, True) if how in BYPASSES else (database, how, True)


@pytest.mark.parametrize(("database", "how", "swallows"), [*attempts()], indirect=["database"])
def test_a_handler_that_ends_its_transaction_did_nothing(ledger, ready, how, swallows):
    end = bypasses(ledger)[how]

    def handle(event, session) -> None:
        act(event, session)
        with contextlib.suppress(Exception) if swallows else contextlib.nullcontext():
            end(session)
        if swallows:
            with contextlib.suppress(Exception):
                act(event, session)

    mine = ready(handle)

    assert effects(ledger) == []
    assert rows(ledger, "processed") == []
    assert mine.failure is not None
    if how not in ("a procedure", "autocommit", "constraints"):
        # These the database itself refuses.
        assert isinstance(mine.failure.error, CommitInTransactionError)
        assert "Guarantee.AT_LEAST_ONCE" in str(mine.failure.error)
    mine.close()
    again = ready(act)
    assert again.failure is None
    assert effects(ledger) == ["a"]


def _insert_again(session) -> None:
    session.execute(sa.insert(Stock).values(name="there"))


def _flush_again(session) -> None:
    session.add(Stock(name="there"))
    session.flush()


def _insert_beneath(session) -> None:
    session.connection().exec_driver_sql("INSERT INTO stock VALUES ('there')")


@pytest.mark.parametrize("fails", [_insert_again, _flush_again, _insert_beneath])
def test_an_event_whose_handler_swallows_an_sql_error_is_not_done(ledger, ready, fails):
    def handle(event, session) -> None:
        act(event, session)
        with contextlib.suppress(sa.exc.SQLAlchemyError):
            fails(session)

    mine = ready(handle)

    assert isinstance(mine.failure.error, HandlerFailed)
    assert "begin_nested" in str(mine.failure.error)
    assert effects(ledger) == []
    assert rows(ledger, "processed") == []


@pytest.mark.parametrize("fails", [_insert_again, _flush_again, _insert_beneath])
def test_the_error_of_a_statement_is_what_the_consumer_tells(ledger, ready, fails):
    mine = ready(lambda event, session: fails(session))

    assert isinstance(mine.failure.error, sa.exc.IntegrityError)
    assert effects(ledger) == []


def test_what_the_session_holds_back_is_written_before_the_checkpoint(ledger, ready):
    mine = ready(lambda event, session: session.add(Stock(name="new")))

    assert mine.failure is None
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(Stock)).scalar() == 2


def test_a_flush_that_fails_at_the_end_is_a_failure(ledger, ready):
    mine = ready(lambda event, session: session.add(Stock(name="there")))

    assert isinstance(mine.failure.error, sa.exc.IntegrityError)
    assert rows(ledger, "processed") == []


@pytest.mark.parametrize("fails", [_insert_again, _flush_again, _insert_beneath])
def test_a_part_that_may_fail_has_a_savepoint_of_its_own(ledger, ready, fails):
    def handle(event, session) -> None:
        act(event, session)
        with contextlib.suppress(sa.exc.IntegrityError), session.begin_nested():
            fails(session)
        with session.begin_nested():
            session.add(Stock(name="new"))

    mine = ready(handle)

    assert mine.failure is None
    assert effects(ledger) == ["a"]


def test_an_insert_or_rollback_does_not_let_what_follows_through(
    sqlite_database, engines, bus, project
):
    from agentbus.events import Ledger

    engine = engines(sqlite_database)
    ledger = Ledger(engine)
    ledger.create()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (uuid VARCHAR PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO effects VALUES ('x')")
    send(ledger, "a")
    relay = Relay(ledger, bus)
    relay.run_once()

    def handle(event, session) -> None:
        with contextlib.suppress(sa.exc.DBAPIError):
            session.execute(sa.text("INSERT OR ROLLBACK INTO effects VALUES ('x')"))
        with contextlib.suppress(sa.exc.DBAPIError):
            act(event, session)

    mine = Consumer(register(handle, STREAM, name="welcome"), ledger, bus)
    mine.run_once()

    assert mine.failure is not None
    assert effects(ledger) == ["x"]
    assert rows(ledger, "processed") == []
    mine.close()
    relay.close()


def test_a_connection_is_as_it_was_when_the_handler_is_through(ledger, ready):
    mine = ready(act)

    assert mine.failure is None
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO effects VALUES ('b', '')")
        connection.commit()
    assert effects(ledger) == ["a", "b"]


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("COMMIT", True),
        (" commit work", True),
        ("end", True),
        ("ROLLBACK TRANSACTION", True),
        ("SELECT 1; ROLLBACK", True),
        ("-- hi\nCOMMIT", True),
        ("START TRANSACTION", True),
        ("ROLLBACK TO SAVEPOINT mine", False),
        ("ROLLBACK WORK TO mine", False),
        ("SAVEPOINT mine", False),
        ("RELEASE mine", False),
        ("INSERT INTO t VALUES ('; COMMIT')", False),
        ("INSERT INTO t VALUES ('it''s; COMMIT')", False),
        ("SELECT 1 -- ; COMMIT", False),
        ("SELECT 1 /* ; COMMIT */", False),
        ("DO $x$ BEGIN PERFORM 1; END $x$", False),
        ('SELECT "commit" FROM t', False),
        ("SELECT CASE WHEN true THEN 1 END", False),
        ("PREPARE plan AS SELECT 1", False),
        ("UPDATE t SET ended = 1", False),
    ],
)
def test_a_statement_that_ends_a_transaction_is_known(statement, answer):
    assert ends(statement) is answer
