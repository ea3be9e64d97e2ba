"""Opens a ledger by the URL of its database."""

from __future__ import annotations

import math
import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from agentbus.core.errors import ConfigError
from agentbus.events.databases import SQLITE
from agentbus.events.ledger import Ledger

_EXTRA = "pip install 'agentbus-toolkit[events]'"
# The accepted URL schemes, and the driver of each.
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
# Seconds to wait for SQLite's only write lock, which a handler may hold.
_SQLITE_PATIENCE = 30.0
# Detect a server that vanished after 25 s, instead of hours by default. Until then no other process
# can take over, since the lease is still renewed over another connection.
_ALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def open_ledger(
    url: str,
    prefix: str = "agentbus_",
    schema: str | None = None,
    *,
    deadline: float = 5.0,
    make: bool = False,
    patience: float = _SQLITE_PATIENCE,
) -> Ledger:
    """Return the ledger in a database, with its own engine, without connecting yet.

    `deadline` limits connecting to PostgreSQL, `patience` waiting for SQLite's lock, in seconds. A missing
    SQLite file is created only if `make` is true. Raises `ConfigError`, without secret parts of the URL.
    """
    parsed = _read(url)
    options: dict[str, Any] = {"timeout": patience}
    if parsed.get_backend_name() == SQLITE:
        if schema is not None:
            raise ConfigError("SQLite has no schemas", hint="leave out the schema, or use a prefix")
        _look(parsed.database, make=make)
    else:
        options = {name: value for name, value in _ALIVE.items() if name not in parsed.query}
        if "connect_timeout" not in parsed.query:
            options["connect_timeout"] = max(2, math.ceil(deadline))
    try:
        # Allow any number of connections: each consumer of this process needs one for its thread.
        engine = sa.create_engine(parsed, connect_args=options, max_overflow=-1)
    except ImportError as error:
        raise ConfigError(
            f"this database needs the package {error.name}, which is not installed", hint=_EXTRA
        ) from error
    except (exc.SQLAlchemyError, TypeError, ValueError):
        # The message may contain parts of the URL.
        raise ConfigError("the database's URL cannot be used", hint="correct its options") from None
    return Ledger(engine, prefix, schema)


def _read(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        raise ConfigError(
            "the database's URL cannot be read",
            hint="write it as postgresql://user:password@host/name, or sqlite:///path",
        ) from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise ConfigError(
            f"a ledger cannot be opened by {parsed.drivername!a}",
            hint="use postgresql:// or sqlite://",
        )
    return parsed.set(drivername=driver)


def _look(path: str | None, *, make: bool) -> None:
    if path in (None, "", ":memory:"):
        raise ConfigError(
            "a database in memory is gone when its process ends", hint="name a file: sqlite:///path"
        )
    assert path is not None
    if not (make or os.path.exists(path) or path.startswith("file:")):
        raise ConfigError(f"the database {path!a} is not there", hint="create it")
