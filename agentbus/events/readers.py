"""Readers that are no consumers and need events nevertheless, such as an archive: kept in the ledger, too.

They say on the server what they need. Were it known there alone, a server that was wiped would let go of
events that are still in the outbox, and must be published again for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.core.stream import position
from agentbus.core.timespec import stream_id
from agentbus.events import outbox
from agentbus.events.leases import READER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.events.leases import HeldLease
    from agentbus.events.outbox import Position
    from agentbus.events.tables import Tables

_NONE = b"none"
# As far as a database's whole numbers go.
_MOST = 2**63 - 1


def over(needs: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Return the readers that need nothing any more."""
    return tuple(reader for reader, needed in needs.items() if needed == _NONE)


def note(
    connection: sa.Connection,
    made: Tables,
    held: HeldLease,
    needs: Mapping[bytes, bytes],
    passed: Position,
    last: Position,
) -> None:
    """Enter what readers need as roles of the stream, and forget those that need nothing any more.

    One that is not heard of stays: the server may have lost what it said. None goes back, and a new one
    begins where all others are: what is before may be gone. None is beyond `last`, since ids must follow
    what the ledger knows. Raises `StaleLease`.
    """
    lease = made.lease
    outbox.fence(connection, made, held)
    found = sa.select(lease).where(lease.c.stream == held.stream)
    known = {row.role: (row.checkpoint_ms, row.checkpoint_seq) for row in connection.execute(found)}
    for reader, needed in needs.items():
        role = _role(reader)
        where = (lease.c.stream == held.stream, lease.c.role == role)
        if needed == _NONE:
            connection.execute(sa.delete(lease).where(*where))
            continue
        before = known.get(role)
        at = max(min(_before(needed), last), passed if before is None else before)
        if before is None:
            row = {"stream": held.stream, "role": role, "owner": ""}
            connection.execute(sa.insert(lease).values(row))
        if at != before:
            moved = sa.update(lease).where(*where)
            connection.execute(moved.values(checkpoint_ms=at[0], checkpoint_seq=at[1]))


def _role(reader: bytes) -> str:
    # Another program may call itself anything, and PostgreSQL takes no NUL.
    return READER + reader.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def _before(needed: bytes) -> Position:
    """Return the position before an id; what is no id needs everything."""
    text = needed.decode("utf-8", "replace")
    if "-" not in text or stream_id(text) is None:
        return 0, 0
    milliseconds, sequence = position(text)
    if sequence:
        return min(milliseconds, _MOST), min(sequence - 1, _MOST)
    return (min(milliseconds - 1, _MOST), _MOST) if milliseconds else (0, 0)
