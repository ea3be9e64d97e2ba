"""The database of events: a file, a private PostgreSQL, or an empty one at a URL."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from agentbus.core.errors import ConfigError
from agentbus.events import Ledger, open_ledger
from tests.torture.events import shop
from tests.torture.events.plan import ORDERS
from tests.torture.events.postgres import Postgres
from tests.torture.network import Proxy
from tests.torture.site import Upstream

SQLITE, POSTGRESQL = "sqlite", "postgresql"
_PORT = 5432
# For SQLite's lock, in seconds; the second where its holder may be frozen until we have looked.
_PATIENCE, _GLANCE = 30.0, 1.0


class Database:
    """A database with the tables of events and of the shop; `server` may be restarted."""

    def __init__(self, url: str, server: Postgres | None = None) -> None:
        self.ledger: Ledger = open_ledger(url, make=True)
        self.url = self.ledger.engine.url
        self.server = server
        self._engine = self._opened(_PATIENCE)
        self._glancing = self._opened(_GLANCE)

    def _opened(self, patience: float) -> sa.Engine:
        options = {"timeout": patience} if self.name == SQLITE else {}
        return sa.create_engine(self.url, poolclass=sa.NullPool, connect_args=options)

    @property
    def name(self) -> str:
        """The kind of database."""
        return self.ledger.dialect

    @property
    def upstreams(self) -> list[Upstream]:
        """Where the proxies of each process lead: nowhere for a file."""
        if self.name == SQLITE:
            return []
        place = self.url.query.get("host")
        port = self.url.port or _PORT
        if isinstance(place, str) and place.startswith("/"):
            return [f"{place}/.s.PGSQL.{port}"]
        return [(self.url.host or "localhost", port)]

    def through(self, proxy: Proxy | None) -> str:
        """Return the URL by which a process behind a proxy reaches it."""
        url = self.url
        if proxy is not None:
            url = url.difference_update_query(["host"]).set(host="127.0.0.1", port=proxy.port)
            if self.server is not None:
                url = url.update_query_dict({"sslmode": "disable"})
        return url.render_as_string(hide_password=False)

    def make(self, *, wal: bool) -> None:
        """Create all tables. Raises `ConfigError` if any exists, since it may be in use."""
        there = set(sa.inspect(self._engine).get_table_names()) & {
            each.name for each in self._tables
        }
        if there:
            raise ConfigError(
                f"the database {self.ledger.place} holds tables already: {', '.join(sorted(there))}",
                hint="give torture an empty database: it drops its tables in the end",
            )
        if wal and self.name == SQLITE:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        self.ledger.create()
        with self._engine.begin() as connection:
            shop.METADATA.create_all(connection)
            connection.execute(sa.insert(shop.COUNTER).values(stream=ORDERS, last=0))

    def drop(self) -> None:
        """Drop all tables."""
        with self._engine.begin() as connection:
            shop.METADATA.drop_all(connection)
            self.ledger.metadata.drop_all(connection)

    def close(self) -> None:
        """Close its connections."""
        self.ledger.engine.dispose()

    def ask(self, asked: Any, engine: sa.Engine | None = None) -> list[Any]:
        """Return the rows of a query."""
        with (engine or self._engine).connect() as connection:
            return [tuple(row) for row in connection.execute(asked)]

    def tokens(self, role: str) -> int:
        """Return how often a role's leases were taken; 0 while the database is away."""
        lease = self.ledger.tables.lease
        asked = sa.select(sa.func.sum(lease.c.token)).where(lease.c.role == role)
        with contextlib.suppress(exc.DBAPIError):
            return int(self.ask(asked, self._glancing)[0][0] or 0)
        return 0

    def keep(self, place: pathlib.Path) -> None:
        """Save all tables as files."""
        place.mkdir(exist_ok=True)
        for table in self._tables:
            with (place / f"{table.name}.jsonl").open("w") as file:
                for row in self.ask(sa.select(table)):
                    file.write(json.dumps(row) + "\n")

    @property
    def _tables(self) -> list[sa.Table]:
        return [*self.ledger.metadata.sorted_tables, *shop.METADATA.sorted_tables]


@contextlib.contextmanager
def opened(wanted: str, place: pathlib.Path, *, wal: bool) -> Iterator[Database]:
    """Open `sqlite` in a directory, our own `postgresql`, or one at a URL, which is emptied in the end."""
    with contextlib.ExitStack() as stack:
        server = None
        if wanted == SQLITE:
            url = f"sqlite:///{place / 'shop.db'}"
        elif wanted == POSTGRESQL:
            # Crashes of the machine are not tried here.
            server = stack.enter_context(Postgres(fsync="off"))
            url = server.url
        else:
            url = wanted
        found = Database(url, server)
        stack.callback(found.close)
        found.make(wal=wal)
        if wanted not in {SQLITE, POSTGRESQL}:
            stack.callback(found.drop)
        yield found
