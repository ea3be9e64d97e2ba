"""Databases for the tests: each runs on SQLite, in a file, and on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import pathlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

import agentbus
from agentbus.events import Consumer, Ledger, Relay, register
from agentbus.torture.events.postgres import served
from tests.events.shop import STREAM, act


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server for the whole run, without a database."""
    with served() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of an empty database of the test's own, on each kind of server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    with _made(request.getfixturevalue("postgres")) as url:
        yield url


@pytest.fixture
def postgres_database(postgres: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, for what SQLite has no like of."""
    with _made(postgres) as url:
        yield url


@pytest.fixture
def sqlite_database(tmp_path: pathlib.Path) -> str:
    """The URL of an empty SQLite database, for what PostgreSQL has no like of."""
    return f"sqlite:///{tmp_path / 'only.db'}"


@contextlib.contextmanager
def _made(server: str) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:16]}"
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        made = sa.make_url(server).set(database=name)
        yield made.render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


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
