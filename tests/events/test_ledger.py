"""The ledger's tables: made, checked, and used from what the application already has."""

from __future__ import annotations

import threading
import time

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from agentbus.errors import BackendUnavailable, ConfigError
from agentbus.events import Ledger, open_ledger, send_event
from tests.events.shop import STREAM, rows


def test_a_fresh_ledger_is_as_it_should_be(ledger):
    ledger.check()


def test_creating_it_again_changes_nothing(ledger):
    ledger.create()

    ledger.check()


def test_several_that_create_it_at_once_all_succeed(database, engines):
    failures: list[Exception] = []
    barrier = threading.Barrier(4)

    def create() -> None:
        mine = Ledger(engines(database))
        barrier.wait()
        try:
            mine.create()
        except Exception as error:  # noqa: BLE001 (any of them is a failure)
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    Ledger(engines(database)).check()


def test_a_ledger_that_was_not_made_is_missed(engine):
    with pytest.raises(ConfigError, match="'agentbus_outbox' is missing"):
        Ledger(engine).check()


def test_a_column_that_is_missing_is_named(ledger, engine):
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE agentbus_attempts DROP COLUMN last_error")

    with pytest.raises(ConfigError, match=r"agentbus_attempts\.last_error is missing"):
        ledger.check()


def test_a_missing_seal_is_named(postgres_database, engines):
    engine = engines(postgres_database)
    ledger = Ledger(engine)
    ledger.create()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER agentbus_sealed ON agentbus_processed")

    with pytest.raises(ConfigError, match="agentbus_sealed"):
        ledger.check()

    ledger.create()
    ledger.check()


def test_two_prefixes_are_two_ledgers(ledger, engine):
    other = Ledger(engine, prefix="other_")
    with pytest.raises(ConfigError):
        other.check()

    other.create()

    other.check()
    ledger.check()


# In one of them a name has more bytes than letters, and more than PostgreSQL allows.
@pytest.mark.parametrize("schema", ["Events", 'we"ird', "1 %s", "ü" * 26])
def test_a_ledger_may_lie_in_a_schema_of_its_own(postgres_database, engines, schema):
    engine = engines(postgres_database)
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    ledger = Ledger(engine, schema=schema)

    ledger.create()

    ledger.check()
    with engine.begin() as connection:
        send_event(connection, STREAM, "Placed", {}, ledger=ledger)
    assert len(rows(ledger, "outbox")) == 1


def test_a_prefix_may_have_capital_letters(engine):
    ledger = Ledger(engine, prefix="Shop_")

    ledger.create()
    ledger.create()

    ledger.check()


@pytest.mark.parametrize("prefix", ["", "a b", "1a", "a;", "é", "a" * 33])
def test_a_prefix_that_begins_no_name_is_refused(engine, prefix):
    with pytest.raises(ConfigError, match="prefix"):
        Ledger(engine, prefix=prefix)


def test_what_is_no_engine_is_refused():
    with pytest.raises(ConfigError, match="Engine"):
        Ledger("sqlite://")  # type: ignore[arg-type]


def test_tables_are_made_in_the_callers_transaction(engine):
    with engine.connect() as connection:
        Ledger(connection).create()
        Ledger(connection).check()
        connection.commit()
    with Session(engine) as session:
        Ledger(session).check()


def test_a_transaction_commits_what_it_did(ledger):
    with ledger.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO effects (uuid) VALUES ('a')")

    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM effects").scalar() == 1


def test_a_transaction_that_raises_did_nothing(ledger):
    def spoil() -> None:
        with ledger.transaction() as connection:
            connection.exec_driver_sql("INSERT INTO effects (uuid) VALUES ('a')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spoil()

    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM effects").scalar() == 0


@pytest.mark.parametrize("mine", ["plain", "begin of its own", "autocommit"])
def test_in_sqlite_a_transaction_has_the_write_lock_at_once(sqlite_database, engines, mine):
    options = {"isolation_level": "AUTOCOMMIT"} if mine == "autocommit" else {}
    engine = engines(sqlite_database, **options)
    if mine == "begin of its own":
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    other = engines(sqlite_database, connect_args={"timeout": 0})
    ledger = Ledger(engine)
    ledger.create()

    with ledger.transaction():
        with pytest.raises(BackendUnavailable, match="locked"):
            Ledger(other).create()
    Ledger(other).create()


def test_the_clock_is_the_databases(ledger, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)

    first = ledger.now()
    assert 1_700_000_000_000 < first <= ledger.now()


def test_a_message_about_a_database_holds_no_password(engines):
    engine = engines("postgresql+psycopg://ada:s3cret@127.0.0.1:1/shop?connect_timeout=2")

    with pytest.raises(BackendUnavailable) as refusal:
        Ledger(engine).create()

    assert "s3cret" not in str(refusal.value)
    assert "'shop' at 127.0.0.1:1" in str(refusal.value)


def test_a_database_that_takes_no_writes_is_unavailable_and_connected_to_again(
    postgres_database, engines
):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    with ledger.engine.begin() as connection:
        # As a primary is that has become a standby.
        connection.exec_driver_sql("SET default_transaction_read_only = on")

    with pytest.raises(BackendUnavailable, match="read-only transaction"):
        ledger.identity()

    assert ledger.identity() > 0


def test_a_postgresql_that_vanished_is_noticed_unless_the_url_says_otherwise(postgres_database):
    mine = open_ledger(f"{postgres_database}&keepalives_idle=77")

    with mine.engine.connect() as connection:
        told = connection.connection.driver_connection.info.get_parameters()

    mine.engine.dispose()
    assert told["keepalives_idle"] == "77"
    assert told["keepalives_interval"] == "5"
    assert told["tcp_user_timeout"] == "25000"


@pytest.mark.parametrize("prefix", ["agentbus_", "B_"])
def test_the_statements_for_migrations_make_what_is_checked(database, engines, prefix):
    made = Ledger(engines(database), prefix)

    with made.engine.begin() as connection:
        for statement in made.statements():
            connection.exec_driver_sql(statement)

    made.check()
    made.create()


def test_a_migration_that_is_rolled_back_leaves_nothing(postgres_database, engines):
    engine = engines(postgres_database)

    with engine.connect() as connection, connection.begin() as migration:
        for statement in Ledger(connection).statements():
            connection.exec_driver_sql(statement)
        migration.rollback()

    assert len(Ledger(engine).missing()) == 5


def test_a_ledger_is_the_same_one_for_all_who_open_it(ledger, engine):
    assert ledger.identity() == Ledger(engine).identity()


@pytest.mark.parametrize("change", [{"database": "nowhere"}, {"username": "nobody"}])
def test_a_database_or_user_that_is_not_there_is_an_error_of_the_configuration(
    postgres, engines, change
):
    wrong = Ledger(engines(sa.make_url(postgres).set(**change)))

    with pytest.raises(ConfigError, match="does not exist"):
        wrong.check()


def test_a_user_without_permission_is_an_error_of_the_configuration(postgres_database, engines):
    Ledger(engine := engines(postgres_database)).create()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA public TO reader"
        )
    try:
        with pytest.raises(ConfigError, match="permission denied"):
            Ledger(engines(sa.make_url(postgres_database).set(username="reader"))).identity()
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY reader; DROP ROLE reader")


def test_a_file_that_is_not_a_database_is_an_error_of_the_configuration(engines, tmp_path):
    (tmp_path / "notes.txt").write_text("these are notes\n" * 100)

    with pytest.raises(ConfigError, match="not a database"):
        Ledger(engines(f"sqlite:///{tmp_path / 'notes.txt'}")).check()
