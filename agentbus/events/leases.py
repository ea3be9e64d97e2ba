"""Leases: which process acts for a stream in a role, and the role's checkpoint."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.core.errors import StaleLease
from agentbus.events import databases
from agentbus.events.databases import now_ms, transaction_id

if TYPE_CHECKING:
    from agentbus.events.tables import Position, Tables

RELAY = "relay"
# The role prefix of readers: an archive, for example, is not a consumer but also needs events.
READER = "reader:"
# The role prefix of consumers of the stream whose ledgers are others.
ELSEWHERE = f"{READER}consumer:"
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that was acquired: its fencing token, and the checkpoint at that time."""

    stream: str
    role: str
    token: int
    checkpoint: Position
    outbox_id: int


def identity(connection: sa.Connection, tables: Tables) -> int:
    """Return the random number that identifies this ledger; the first call creates it."""
    # An empty stream name, which no stream has, marks the ledger's own row.
    row = {"stream": "", "role": "ledger", "owner": "", "token": secrets.randbits(62)}
    _insert(connection, tables, row)
    wanted = sa.select(tables.lease.c.token).where(*tables.role("", "ledger"))
    number: int = connection.execute(wanted).scalar_one()
    return number


def renew_identity(connection: sa.Connection, tables: Tables) -> int:
    """Give the ledger another number, and return it."""
    connection.execute(sa.delete(tables.lease).where(*tables.role("", "ledger")))
    return identity(connection, tables)


def register(connection: sa.Connection, tables: Tables, stream: str, role: str) -> None:
    """Add a role to a stream: from now on, events that it has not passed are kept."""
    _insert(connection, tables, {"stream": stream, "role": role, "owner": ""})


def _insert(connection: sa.Connection, tables: Tables, row: dict[str, object]) -> None:
    insert = databases.insert(connection.dialect.name, tables.lease)
    connection.execute(insert.on_conflict_do_nothing(), row)


def acquire(
    connection: sa.Connection,
    tables: Tables,
    stream: str,
    role: str,
    owner: str,
    seconds: float = LEASE_SECONDS,
    *,
    force: bool = False,
) -> HeldLease | None:
    """Acquire a lease that is free or has expired; None while another process holds it.

    With `force` it is taken from its holder, whose open transaction then cannot commit; None if the
    role does not exist. Each lease of a role has a higher token than the previous lease.
    """
    where = tables.role(stream, role)
    if not force:
        register(connection, tables, stream, role)
        where.append(tables.lease.c.expires_at_ms <= now_ms())
    lease = tables.lease
    taken = connection.execute(
        sa.update(lease)
        .where(*where)
        .values(
            owner=owner,
            token=lease.c.token + 1,
            expires_at_ms=now_ms() + round(seconds * 1000),
            updated_at_ms=now_ms(),
        )
        .returning(
            *(lease.c.token, lease.c.checkpoint_ms, lease.c.checkpoint_seq),
            lease.c.checkpoint_outbox_id,
        )
    ).first()
    if taken is None:
        return None
    return HeldLease(stream, role, taken[0], (taken[1], taken[2]), taken[3])


def renew(
    connection: sa.Connection, tables: Tables, held: HeldLease, seconds: float = LEASE_SECONDS
) -> Position:
    """Extend a lease; returns its checkpoint. Raises `StaleLease` if another process acquired it."""
    lease = tables.lease
    done = connection.execute(
        sa.update(lease)
        .where(*mine(tables, held))
        .values(expires_at_ms=now_ms() + round(seconds * 1000), updated_at_ms=now_ms())
        .returning(lease.c.checkpoint_ms, lease.c.checkpoint_seq)
    ).first()
    if done is None:
        raise stale(held)
    return done[0], done[1]


def release(connection: sa.Connection, tables: Tables, held: HeldLease) -> None:
    """Release a lease that is still held, so that another process can acquire it at once."""
    free = sa.update(tables.lease).values(owner="", expires_at_ms=0)
    connection.execute(free.where(*mine(tables, held)))


def release_dead(connection: sa.Connection, tables: Tables, owner: str) -> None:
    """Release the leases of a process that has ended; each process has its own owner id."""
    free = sa.update(tables.lease).values(owner="", expires_at_ms=0)
    connection.execute(free.where(tables.lease.c.owner == owner))


def advance(tables: Tables) -> sa.Update:
    """Return the last statement of a consumer's transaction, which must update one row to commit.

    Its parameters are `at_stream`, `at_role`, `at_token`, `at_transaction`, `to_ms`, `to_seq`,
    `to_outbox_id`.
    """
    lease = tables.lease
    to_ms = sa.bindparam("to_ms", type_=sa.BigInteger)
    to_seq = sa.bindparam("to_seq", type_=sa.BigInteger)
    return (
        sa.update(lease)
        .where(
            lease.c.stream == sa.bindparam("at_stream"),
            lease.c.role == sa.bindparam("at_role"),
            lease.c.token == sa.bindparam("at_token", type_=sa.BigInteger),
            sa.tuple_(lease.c.checkpoint_ms, lease.c.checkpoint_seq) < sa.tuple_(to_ms, to_seq),
            # Match only the transaction that recorded the event as processed, not a later one.
            transaction_id() == sa.bindparam("at_transaction", type_=sa.BigInteger),
        )
        .values(
            checkpoint_ms=to_ms,
            checkpoint_seq=to_seq,
            checkpoint_outbox_id=sa.bindparam("to_outbox_id", type_=sa.BigInteger),
            updated_at_ms=now_ms(),
        )
    )


def mine(tables: Tables, held: HeldLease) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for a lease that is still held."""
    return [*tables.role(held.stream, held.role), tables.lease.c.token == held.token]


def stale(held: HeldLease) -> StaleLease:
    """Return the error for a process whose lease another one acquired."""
    return StaleLease(
        f"another process holds the lease of {held.role!r} on the stream {held.stream!r} now",
        hint="nothing was committed for it; the lease is acquired again when it is free",
    )
