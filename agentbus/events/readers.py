"""Readers of a stream beside the ledger's own consumers: archives, and consumers of other ledgers.

Readers record their needs on the Redis server. The ledger has a copy: otherwise, after the server
was wiped, the relay would delete outbox rows that must be published again for the readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.events import leases, outbox
from agentbus.events.leases import ELSEWHERE, READER
from agentbus.events.tables import entry_id, previous
from agentbus.store.steps import Command, Script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.redis import RedisClient
    from agentbus.events.tables import Position, Tables

# The value of a reader that no longer needs any entries of the stream.
NONE = b"none"
# The largest integer of both databases.
_MOST = 2**63 - 1


def consumer(ledger: Ledger, name: str) -> str:
    """Return the name of a ledger's consumer among the readers; with '', the prefix of them all."""
    return f"{ELSEWHERE.removeprefix(READER)}{ledger.identity()}:{name}"


def record(
    ledger: Ledger, server: RedisClient, stream: str, name: str, checkpoint: Position
) -> Position:
    """Tell all relays of the stream how far a consumer is; returns the lowest id that anyone needs."""
    keys = server.keys
    needs = (checkpoint[0], checkpoint[1] + 1)
    lowest = server.ask(
        Script(
            "record_checkpoint",
            (keys.events(stream), keys.relay(stream), keys.event_readers(stream)),
            (consumer(ledger, name), entry_id(checkpoint), entry_id(needs)),
        )
    )
    return position(text(lowest))


def release(ledger: Ledger, server: RedisClient, stream: str, name: str) -> None:
    """Tell all relays of the stream that a consumer needs nothing any more."""
    server.ask(Command("HSET", server.keys.event_readers(stream), consumer(ledger, name), NONE))


def note(
    connection: sa.Connection,
    tables: Tables,
    held: HeldLease,
    needs: Mapping[bytes, bytes],
    passed: Position,
    last: Position,
) -> None:
    """Record the needs of readers as roles of the stream; delete the roles of released readers.

    A reader that is missing in `needs` is kept: the server may have lost its record. Positions
    never move back. A new reader begins at `passed`, since earlier events may be gone. No position
    exceeds `last`, since new ids must follow every position in the ledger. Raises `StaleLease`.
    """
    lease = tables.lease
    outbox.fence(connection, tables, held)
    query = sa.select(lease).where(lease.c.stream == held.stream)
    known = {row.role: (row.checkpoint_ms, row.checkpoint_seq) for row in connection.execute(query)}
    for reader, needed in needs.items():
        role = _role(reader)
        where = tables.role(held.stream, role)
        if needed == NONE:
            connection.execute(sa.delete(lease).where(*where))
            continue
        before = known.get(role)
        at = max(min(_before(needed), last), passed if before is None else before)
        if before is None:
            leases.register(connection, tables, held.stream, role)
        if at != before:
            moved = sa.update(lease).where(*where)
            connection.execute(moved.values(checkpoint_ms=at[0], checkpoint_seq=at[1]))


def _role(reader: bytes) -> str:
    # The name may contain any bytes, while PostgreSQL's text cannot contain NUL.
    return READER + reader.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def _before(needed: bytes) -> Position:
    """Return the position before an id; an invalid id means that all events are needed."""
    entry_id = needed.decode("utf-8", "replace")
    if "-" not in entry_id or stream_id(entry_id) is None:
        return 0, 0
    at = position(entry_id)
    if at == (0, 0):
        return at
    milliseconds, sequence = previous(at)
    return min(milliseconds, _MOST), min(sequence, _MOST)
