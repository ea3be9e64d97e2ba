"""The tables of a ledger, for a table prefix and a database schema.

A position is the id of a stream's entry as two numbers, which compare as the server compares ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, event
from sqlalchemy.schema import CreateIndex, CreateTable

from agentbus.core.errors import ConfigError
from agentbus.events import checked
from agentbus.events.databases import POSTGRESQL, now_ms

Position = tuple[int, int]
# The largest integer of both databases; no server adds that many entries within a millisecond.
_LAST_OF_A_MS = 2**63 - 1
# Maximum bytes of a name, beyond which PostgreSQL truncates it. Our longest name adds 24 to the
# prefix.
_LONGEST_NAME = 63
_LONGEST_PREFIX = 32
# The SQLSTATE with which the trigger refuses a commit that comes before the checkpoint.
UNSEALED = "AB001"


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one ledger; `metadata` holds them all."""

    metadata: sa.MetaData
    outbox: sa.Table
    processed: sa.Table
    lease: sa.Table
    attempts: sa.Table
    parked: sa.Table

    @property
    def channel(self) -> str:
        """The channel on which PostgreSQL notifies of new rows in the outbox."""
        name = f"{self.outbox.schema or ''}{self.outbox.name}"
        return name.encode()[:_LONGEST_NAME].decode(errors="ignore")

    @property
    def position(self) -> Any:
        """The position at which an outbox row was published, as an SQL expression to compare."""
        return sa.tuple_(self.outbox.c.position_ms, self.outbox.c.position_seq)

    def published(self, stream: str) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for the published outbox rows of a stream."""
        return [self.outbox.c.stream == stream, self.outbox.c.position_ms.is_not(None)]

    def waiting(self, stream: str) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for the outbox rows of a stream that are not published yet."""
        return [self.outbox.c.stream == stream, self.outbox.c.position_ms.is_(None)]

    def role(self, stream: str, role: str) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for the lease of a role on a stream."""
        return [self.lease.c.stream == stream, self.lease.c.role == role]


def entry_id(at: Position) -> str:
    """Return a position as the id of an entry."""
    return f"{at[0]}-{at[1]}"


def previous(at: Position) -> Position:
    """Return the last position before another one."""
    return (at[0], at[1] - 1) if at[1] else (at[0] - 1, _LAST_OF_A_MS)


def tables(prefix: str = "agentbus_", schema: str | None = None) -> Tables:
    """Return the tables of a ledger. Raises `ConfigError` for a prefix invalid in table names."""
    if not (prefix.isascii() and prefix.isidentifier() and len(prefix) <= _LONGEST_PREFIX):
        raise ConfigError(
            f"the prefix {prefix!a} cannot begin the name of a table",
            hint=f"use letters, digits and '_', at most {_LONGEST_PREFIX}",
        )
    metadata = sa.MetaData(schema=schema)
    outbox = sa.Table(
        f"{prefix}outbox",
        metadata,
        _number(),
        _text("stream"),
        _text("event_type"),
        Column("event_uuid", checked.text("event_uuid"), nullable=False, unique=True),
        _text("payload"),
        Column("metadata", checked.text("metadata")),
        _now("created_ms"),
        # NULL until the event is published.
        Column("position_ms", checked.number("position_ms")),
        Column("position_seq", checked.number("position_seq")),
        Column("published_at_ms", checked.number("published_at_ms")),
        # The fencing token of the relay that published the event.
        Column("epoch", checked.number("epoch")),
        # Rows are deleted from this table, and an id must never be reused.
        sqlite_autoincrement=True,
    )
    waiting = outbox.c.position_ms.is_(None)
    for name, columns, where in (
        ("waiting", ("id",), waiting),
        ("published", ("position_ms", "position_seq"), ~waiting),
    ):
        sa.Index(
            f"{prefix}outbox_{name}",
            *(outbox.c[each] for each in ("stream", *columns)),
            postgresql_where=where,
            sqlite_where=where,
        )
    lease = sa.Table(
        f"{prefix}lease",
        metadata,
        _key("stream"),
        _key("role"),
        _text("owner"),
        _count("token"),
        _count("expires_at_ms"),
        _count("checkpoint_ms"),
        _count("checkpoint_seq"),
        _count("checkpoint_outbox_id"),
        # In the relay's row: the highest outbox row whose row in `processed` was deleted.
        _count("horizon_outbox_id"),
        _now("updated_at_ms"),
    )
    processed = sa.Table(
        f"{prefix}processed",
        metadata,
        _key("consumer"),
        _key("event_uuid"),
        _text("stream"),
        _whole("outbox_id"),
        _whole("position_ms"),
        _whole("position_seq"),
        _now("at_ms"),
        sa.Index(f"{prefix}processed_at", "at_ms"),
    )
    attempts = sa.Table(
        f"{prefix}attempts",
        metadata,
        _key("consumer"),
        _key("event_uuid"),
        _whole("attempts"),
        Column("last_error", checked.text("last_error")),
        Column("next_at_ms", checked.number("next_at_ms")),
    )
    parked = sa.Table(
        f"{prefix}parked",
        metadata,
        _number(),
        _text("consumer"),
        _text("stream"),
        _text("event_uuid"),
        _text("position"),
        _text("event"),
        _text("error"),
        _whole("attempts"),
        _now("parked_at_ms"),
        # NULL unless a retry was requested.
        Column("retry_ms", checked.number("retry_ms")),
        sa.UniqueConstraint("consumer", "event_uuid", name=f"{prefix}parked_once"),
        sqlite_autoincrement=True,
    )
    ledger_tables = Tables(metadata, outbox, processed, lease, attempts, parked)

    def unsealed(_ddl: object, _target: object, bind: sa.Connection, **_options: object) -> bool:
        return not sealed(bind, ledger_tables, prefix)

    for statement in seal(ledger_tables, prefix):
        # `sa.DDL` expands % in its statement, so escape it.
        ddl = sa.DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
        ddl = ddl.execute_if(
            dialect=POSTGRESQL,
            callable_=unsealed,  # type: ignore[arg-type]
        )
        event.listen(metadata, "after_create", ddl)
    return ledger_tables


def statements(ledger_tables: Tables, prefix: str, dialect: sa.Dialect) -> list[str]:
    """Return the statements that create everything in an empty database, in order."""
    texts = []
    for table in ledger_tables.metadata.sorted_tables:
        wanted: list[sa.DDLElement] = [CreateTable(table)]
        wanted += [
            CreateIndex(each) for each in sorted(table.indexes, key=lambda index: str(index.name))
        ]
        texts += [str(each.compile(dialect=dialect)).strip() for each in wanted]
    if dialect.name == POSTGRESQL:
        texts += [each.strip() for each in seal(ledger_tables, prefix)]
    return ["\n".join(line.rstrip() for line in each.splitlines()) for each in texts]


def _number() -> Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return Column("id", kind, sa.Identity(), primary_key=True)


def _text(name: str) -> Column[str]:
    return Column(name, checked.text(name), nullable=False)


def _key(name: str) -> Column[str]:
    return Column(name, checked.text(name), primary_key=True)


def _whole(name: str, **options: Any) -> Column[int]:
    return Column(name, checked.number(name), nullable=False, **options)


def _count(name: str) -> Column[int]:
    return _whole(name, server_default=sa.text("0"))


def _now(name: str) -> Column[int]:
    return _whole(name, server_default=now_ms())


def seal(ledger_tables: Tables, prefix: str) -> tuple[str, str]:
    """Return PostgreSQL's statements for the trigger that ties processed events to the checkpoint.

    It fires at every COMMIT: the transaction of a handler that circumvents the guard is rolled
    back.
    """
    schema, name = ledger_tables.lease.schema, f"{prefix}sealed"
    lease, processed = (
        _quoted(schema, table.name) for table in (ledger_tables.lease, ledger_tables.processed)
    )
    function = _quoted(schema, name)
    return (
        f"""
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $seal$
BEGIN
  IF NOT EXISTS (
    SELECT 1 FROM {lease} held WHERE held.stream = NEW.stream AND held.role = NEW.consumer
    AND (held.checkpoint_ms, held.checkpoint_seq) >= (NEW.position_ms, NEW.position_seq)
  ) THEN
    RAISE EXCEPTION 'agentbus: a handler tried to commit the transaction of its consumer'
      USING ERRCODE = '{UNSEALED}';
  END IF;
  RETURN NULL;
END $seal$""",  # noqa: S608 (the prefix and the names are ours)
        f"""
CREATE CONSTRAINT TRIGGER {_quoted(None, name)} AFTER INSERT ON {processed}
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {function}()""",
    )


def _quoted(schema: str | None, name: str) -> str:
    parts = [part.replace('"', '""') for part in (schema, name) if part]
    return ".".join(f'"{part}"' for part in parts)


def sealed(connection: sa.Connection, ledger_tables: Tables, prefix: str) -> bool:
    """Tell whether the trigger of `seal` exists."""
    table = ledger_tables.processed
    triggers = connection.execute(
        sa.text("SELECT 1 FROM pg_trigger WHERE tgname = :name AND tgrelid = to_regclass(:table)"),
        {"name": f"{prefix}sealed", "table": _quoted(table.schema, table.name)},
    )
    return triggers.first() is not None
