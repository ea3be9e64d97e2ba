"""Databases for the tests: each runs on SQLite, in a file, and on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

import agentbus
from agentbus.events import Consumer, Ledger, Relay, register
from tests.events.shop import STREAM, act
from tests.torture.events.postgres import Postgres

HERE = pathlib.Path(__file__).parent
# What these files are about is decided in Python, by statements that other files try on both databases:
# they run on PostgreSQL in the nightly tier alone.
ON_SQLITE = [
    HERE / f"test_{name}.py"
    for name in ("parked_events", "consumers_admin", "send", "status", "telemetry")
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave PostgreSQL to the nightly tier where it shows nothing more."""
    assert all(file.exists() for file in ON_SQLITE)
    for item in items:
        database = getattr(item, "callspec", None) and item.callspec.params.get("database")
        if database == "postgresql" and item.path in ON_SQLITE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of the one database of a PostgreSQL server for the whole run."""
    # A crash of the machine is in no test.
    with Postgres(fsync="off") as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of an empty database of the test's own, on each kind of server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    with _emptied(request.getfixturevalue("postgres")) as url:
        yield url


@pytest.fixture
def postgres_database(postgres: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, for what SQLite has no like of."""
    with _emptied(postgres) as url:
        yield url


@pytest.fixture
def sqlite_database(tmp_path: pathlib.Path) -> str:
    """The URL of an empty SQLite database, for what PostgreSQL has no like of."""
    return f"sqlite:///{tmp_path / 'only.db'}"


# To make a database and drop it takes twenty times as long.
_EMPTIED = """
DO $$
DECLARE name text;
BEGIN
  PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid();
  FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)' LOOP
    EXECUTE 'DROP SCHEMA ' || quote_ident(name) || ' CASCADE';
  END LOOP;
  CREATE SCHEMA public;
END $$
"""


@contextlib.contextmanager
def _emptied(server: str) -> Iterator[str]:
    """Have the database to oneself; what a test leaves behind is gone."""
    yield server
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(_EMPTIED)
    engine.dispose()


Engines = Callable[..., sa.Engine]


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Return a function that makes engines, closed when the test ends."""
    made: list[sa.Engine] = []

    def _make(url: str, **options: Any) -> sa.Engine:
        made.append(sa.create_engine(url, **options))
        return made[-1]

    yield _make
    for engine in made:
        engine.dispose()


@pytest.fixture
def engine(database: str, engines: Engines) -> sa.Engine:
    """An engine as an application has one."""
    return engines(database)


@pytest.fixture
def ledger(engine: sa.Engine) -> Ledger:
    """A ledger whose tables are there, beside one of the application's."""
    made = Ledger(engine)
    made.create()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE effects (uuid VARCHAR(64) NOT NULL, note VARCHAR(200))"
        )
    return made


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    """A bus on the run's real server."""
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


@pytest.fixture
def relay(ledger: Ledger, bus: agentbus.Bus) -> Iterator[Relay]:
    """A relay, which gives its leases back when the test ends."""
    made = Relay(ledger, bus)
    yield made
    made.close()


@pytest.fixture
def consume(ledger: Ledger, bus: agentbus.Bus) -> Iterator[Callable[..., Consumer]]:
    """Return a function that makes consumers of the shop's stream, closed when the test ends."""
    made: list[Consumer] = []

    def _consume(
        handler: Callable[..., Any] = act,
        name: str = "welcome",
        at: Callable[[str], None] | None = None,
        at_once: int = 100,
        schemas: Any = None,
        **options: Any,
    ) -> Consumer:
        extra = {} if schemas is None else {"schemas": schemas}
        found = register(handler, STREAM, name=name, **options)
        made.append(Consumer(found, ledger, bus, at=at, at_once=at_once, **extra))
        return made[-1]

    yield _consume
    for each in made:
        each.close()
