"""What the tests do with a ledger: send, relay, look at what the stream and the tables hold."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from agentbus.events import Ledger, send_event

STREAM = "shop:orders"
# Seconds after which the consumers of `crashing` end.
CRASH_AFTER = (0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 30.0)


def send(ledger: Ledger, *names: str, stream: str = STREAM) -> None:
    """Send events with these UUIDs, each committed by itself."""
    for name in names:
        with Session(ledger.engine) as session:
            send_event(session, stream, "Placed", {"name": name}, event_uuid=name)
            session.commit()


def entries(valkey: Any, project: str, stream: str = "shop%3Aorders") -> list[dict[str, str]]:
    """Return the entries of a stream as the server has them, the id under `id`."""
    found = valkey.ask("XRANGE", f"{project}:ev:{stream}", "-", "+")
    return [
        {
            "id": entry_id.decode(),
            **{flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)},
        }
        for entry_id, flat in found
    ]


def uuids(valkey: Any, project: str) -> list[str]:
    """Return the UUIDs in the stream, in its order."""
    return [entry["event_uuid"] for entry in entries(valkey, project)]


def rows(ledger: Ledger, table: str) -> list[Any]:
    """Return the rows of one of the ledger's tables."""
    found = getattr(ledger.tables, table)
    chosen = sa.select(found).order_by(*found.primary_key.columns)
    if table == "lease":
        # One of them is the ledger's own.
        chosen = chosen.where(found.c.stream != "")
    with ledger.engine.connect() as connection:
        return list(connection.execute(chosen))


def effects(ledger: Ledger) -> list[str]:
    """Return what handlers wrote into the application's table, sorted."""
    with ledger.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT uuid FROM effects ORDER BY uuid")
        return list(found.scalars())


def act(event: Any, session: Any) -> None:
    """Act on an event: write its UUID into the application's table."""
    session.execute(
        sa.text("INSERT INTO effects (uuid) VALUES (:uuid)"), {"uuid": event.event_uuid}
    )


def payload(entry: dict[str, str]) -> Any:
    """Return an entry's payload."""
    return orjson.loads(entry["payload"])


def expire(ledger: Ledger) -> None:
    """Let every lease run out, as if its holder had been silent for long."""
    with ledger.transaction() as connection:
        connection.execute(sa.update(ledger.tables.lease).values(expires_at_ms=0))


def register(ledger: Ledger, name: str, stream: str = STREAM) -> None:
    """Make a consumer known, so that nothing is removed before it."""
    from agentbus.events import leases

    with ledger.transaction() as connection:
        leases.register(connection, ledger.tables, stream, name)


def pass_by(ledger: Ledger, name: str, entry_id: str) -> None:
    """Move a consumer's checkpoint to an entry."""
    ms, seq = map(int, entry_id.split("-"))
    lease = ledger.tables.lease
    with ledger.transaction() as connection:
        connection.execute(
            sa.update(lease)
            .where(lease.c.role == name)
            .values(checkpoint_ms=ms, checkpoint_seq=seq)
        )
