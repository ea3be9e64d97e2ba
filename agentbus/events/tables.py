"""The tables of a ledger, made for a prefix and a schema.

A position is a stream id as two numbers, which compare as the server compares ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Column, event
from sqlalchemy.schema import CreateIndex, CreateTable

from agentbus.core.errors import ConfigError
from agentbus.events.databases import POSTGRESQL, now_ms

# PostgreSQL cuts names to 63 bytes, and the longest of ours has 24.
_LONGEST_PREFIX = 32
# The state by which PostgreSQL refuses a commit that comes before the checkpoint.
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
        """The name under which PostgreSQL notifies of new rows in the outbox."""
        return f"{self.outbox.schema or ''}{self.outbox.name}"[:63]


def tables(prefix: str = "agentbus_", schema: str | None = None) -> Tables:
    """Return the tables of a ledger. Raises `ConfigError` if the prefix can begin no name."""
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
        Column("event_uuid", sa.Text, nullable=False, unique=True),
        _text("payload"),
        Column("metadata", sa.Text),
        Column("created_ms", sa.BigInteger, nullable=False, server_default=now_ms()),
        # Null: not published yet.
        Column("position_ms", sa.BigInteger),
        Column("position_seq", sa.BigInteger),
        Column("published_at_ms", sa.BigInteger),
        # The token of the relay that published it.
        Column("epoch", sa.BigInteger),
        # Rows come and go here, and an id that was given must never be given again.
        sqlite_autoincrement=True,
    )
    waiting = outbox.c.position_ms.is_(None)
    sa.Index(
        f"{prefix}outbox_waiting",
        *(outbox.c.stream, outbox.c.id),
        postgresql_where=waiting,
        sqlite_where=waiting,
    )
    sa.Index(
        f"{prefix}outbox_published",
        *(outbox.c.stream, outbox.c.position_ms, outbox.c.position_seq),
        postgresql_where=outbox.c.position_ms.is_not(None),
        sqlite_where=outbox.c.position_ms.is_not(None),
    )
    lease = sa.Table(
        f"{prefix}lease",
        metadata,
        Column("stream", sa.Text, primary_key=True),
        Column("role", sa.Text, primary_key=True),
        _text("owner"),
        _count("token"),
        _count("expires_at_ms"),
        _count("checkpoint_ms"),
        _count("checkpoint_seq"),
        _count("checkpoint_outbox_id"),
        # In the relay's row: the highest row of the outbox whose entry as processed is gone.
        _count("horizon_outbox_id"),
        Column("updated_at_ms", sa.BigInteger, nullable=False, server_default=now_ms()),
    )
    processed = sa.Table(
        f"{prefix}processed",
        metadata,
        Column("consumer", sa.Text, primary_key=True),
        Column("event_uuid", sa.Text, primary_key=True),
        _text("stream"),
        _whole("outbox_id"),
        _whole("position_ms"),
        _whole("position_seq"),
        Column("at_ms", sa.BigInteger, nullable=False, server_default=now_ms()),
        sa.Index(f"{prefix}processed_at", "at_ms"),
    )
    attempts = sa.Table(
        f"{prefix}attempts",
        metadata,
        Column("consumer", sa.Text, primary_key=True),
        Column("event_uuid", sa.Text, primary_key=True),
        _whole("attempts"),
        Column("last_error", sa.Text),
        Column("next_at_ms", sa.BigInteger),
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
        Column("parked_at_ms", sa.BigInteger, nullable=False, server_default=now_ms()),
        # Null: nobody wants it tried again.
        Column("retry_ms", sa.BigInteger),
        sa.UniqueConstraint("consumer", "event_uuid", name=f"{prefix}parked_once"),
        sqlite_autoincrement=True,
    )
    made = Tables(metadata, outbox, processed, lease, attempts, parked)
    _seal(made, prefix)
    return made


def statements(made: Tables, prefix: str, dialect: sa.Dialect) -> list[str]:
    """Return the statements that make everything in an empty database, in their order."""
    found = []
    for table in made.metadata.sorted_tables:
        wanted: list[sa.DDLElement] = [CreateTable(table)]
        wanted += [
            CreateIndex(each) for each in sorted(table.indexes, key=lambda one: str(one.name))
        ]
        found += [str(each.compile(dialect=dialect)).strip() for each in wanted]
    if dialect.name == POSTGRESQL:
        found += [each.strip() for each in seal(made, prefix)]
    return ["\n".join(line.rstrip() for line in each.splitlines()) for each in found]


def _number() -> Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return Column("id", kind, sa.Identity(), primary_key=True)


def _text(name: str) -> Column[str]:
    return Column(name, sa.Text, nullable=False)


def _whole(name: str) -> Column[int]:
    return Column(name, sa.BigInteger, nullable=False)


def _count(name: str) -> Column[int]:
    return Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))


def seal(made: Tables, prefix: str) -> tuple[str, str]:
    """Return the statements by which PostgreSQL lets no event be processed without its checkpoint.

    The trigger fires at COMMIT, whoever sends that: a handler that reaches the connection beneath every
    guard of ours finds its transaction rolled back.
    """
    lease, processed = _quoted(made.lease), _quoted(made.processed)
    schema = f'"{made.lease.schema}".' if made.lease.schema else ""
    function = f"{schema}{prefix}sealed"
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
CREATE CONSTRAINT TRIGGER {prefix}sealed AFTER INSERT ON {processed}
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {function}()""",
    )


def _quoted(table: sa.Table) -> str:
    return f'"{table.schema}"."{table.name}"' if table.schema else f'"{table.name}"'


def _seal(made: Tables, prefix: str) -> None:
    for statement in seal(made, prefix):
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        event.listen(made.metadata, "after_create", _unless_there(ddl, made, prefix))


def _unless_there(ddl: sa.DDL, made: Tables, prefix: str):  # type: ignore[no-untyped-def]
    def run(_target: object, connection: sa.Connection, **_options: object) -> None:
        if connection.dialect.name == POSTGRESQL and not sealed(connection, made, prefix):
            connection.execute(ddl)

    return run


def sealed(connection: sa.Connection, made: Tables, prefix: str) -> bool:
    """Tell whether the trigger of `seal` is there."""
    found = connection.execute(
        sa.text("SELECT 1 FROM pg_trigger WHERE tgname = :name AND tgrelid = to_regclass(:table)"),
        {"name": f"{prefix}sealed", "table": _quoted(made.processed)},
    )
    return found.first() is not None
