"""Leases: who acts for a stream in a role, by the database's clock, and how far that role is."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from agentbus.core.errors import StaleLease
from agentbus.events import databases
from agentbus.events.databases import now_ms, transaction_id

if TYPE_CHECKING:
    from agentbus.events.tables import Tables

RELAY = "relay"
# What the role of a reader begins with, which is no consumer and needs events nevertheless: an archive.
READER = "reader:"
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that was taken: its fencing token, and the checkpoint that it was taken at."""

    stream: str
    role: str
    token: int
    checkpoint: tuple[int, int]
    outbox_id: int


def identity(connection: sa.Connection, made: Tables) -> int:
    """Return the number by which this ledger is told from others, which is made once."""
    lease = made.lease
    # No stream has an empty name.
    row = {"stream": "", "role": "ledger", "owner": "", "token": secrets.randbits(62)}
    connection.execute(
        databases.insert(connection.dialect.name, lease).on_conflict_do_nothing(), row
    )
    found: int = connection.execute(
        sa.select(lease.c.token).where(lease.c.stream == "", lease.c.role == "ledger")
    ).scalar_one()
    return found


def register(connection: sa.Connection, made: Tables, stream: str, role: str) -> None:
    """Make a role known for a stream: from now on nothing is removed that it has not passed."""
    row = {"stream": stream, "role": role, "owner": ""}
    connection.execute(
        databases.insert(connection.dialect.name, made.lease).on_conflict_do_nothing(), row
    )


def acquire(
    connection: sa.Connection,
    made: Tables,
    stream: str,
    role: str,
    owner: str,
    seconds: float = LEASE_SECONDS,
) -> HeldLease | None:
    """Take a lease that nobody holds, or that ran out; None while another holds it.

    Its token is higher than all before it.
    """
    register(connection, made, stream, role)
    free = made.lease.c.expires_at_ms <= now_ms()
    return _take(connection, made, stream, role, owner, seconds, free)


def seize(
    connection: sa.Connection, made: Tables, stream: str, role: str, owner: str, seconds: float
) -> HeldLease | None:
    """Take a lease from whoever has it; None if the role is not known.

    Whoever had it does nothing in its name any more: what it has under way is not committed.
    """
    return _take(connection, made, stream, role, owner, seconds)


def _take(
    connection: sa.Connection,
    made: Tables,
    stream: str,
    role: str,
    owner: str,
    seconds: float,
    *where: sa.ColumnElement[bool],
) -> HeldLease | None:
    lease = made.lease
    taken = connection.execute(
        sa.update(lease)
        .where(lease.c.stream == stream, lease.c.role == role, *where)
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
    connection: sa.Connection, made: Tables, held: HeldLease, seconds: float = LEASE_SECONDS
) -> tuple[int, int]:
    """Hold a lease for longer; returns its checkpoint. Raises `StaleLease` if another took it."""
    lease = made.lease
    done = connection.execute(
        sa.update(lease)
        .where(*mine(made, held))
        .values(expires_at_ms=now_ms() + round(seconds * 1000), updated_at_ms=now_ms())
        .returning(lease.c.checkpoint_ms, lease.c.checkpoint_seq)
    ).first()
    if done is None:
        raise stale(held)
    return done[0], done[1]


def release(connection: sa.Connection, made: Tables, held: HeldLease) -> None:
    """Give a lease back, so that another may take it at once; nothing if another has it."""
    connection.execute(
        sa.update(made.lease).where(*mine(made, held)).values(owner="", expires_at_ms=0)
    )


def surrender(connection: sa.Connection, made: Tables, stream: str, role: str, owner: str) -> bool:
    """Give back the lease of one that is dead for certain; tells whether it held it."""
    lease = made.lease
    done = connection.execute(
        sa.update(lease)
        .where(lease.c.stream == stream, lease.c.role == role, lease.c.owner == owner)
        .values(owner="", expires_at_ms=0)
    )
    return done.rowcount == 1


def advance(made: Tables) -> sa.Update:
    """Return the last statement of a consumer's transaction, which finds one row or nothing is done.

    It takes `at_stream`, `at_role`, `at_token`, `at_transaction`, `to_ms`, `to_seq`, `to_outbox_id`.
    """
    lease = made.lease
    to_ms = sa.bindparam("to_ms", type_=sa.BigInteger)
    to_seq = sa.bindparam("to_seq", type_=sa.BigInteger)
    return (
        sa.update(lease)
        .where(
            lease.c.stream == sa.bindparam("at_stream"),
            lease.c.role == sa.bindparam("at_role"),
            lease.c.token == sa.bindparam("at_token", type_=sa.BigInteger),
            sa.tuple_(lease.c.checkpoint_ms, lease.c.checkpoint_seq) < sa.tuple_(to_ms, to_seq),
            # The transaction in which the event was entered as processed, and no later one.
            transaction_id() == sa.bindparam("at_transaction", type_=sa.BigInteger),
        )
        .values(
            checkpoint_ms=to_ms,
            checkpoint_seq=to_seq,
            checkpoint_outbox_id=sa.bindparam("to_outbox_id", type_=sa.BigInteger),
            updated_at_ms=now_ms(),
        )
    )


def mine(made: Tables, held: HeldLease) -> list[sa.ColumnElement[bool]]:
    """Return the conditions under which a lease is still the one that was taken."""
    lease = made.lease
    return [
        lease.c.stream == held.stream,
        lease.c.role == held.role,
        lease.c.token == held.token,
    ]


def stale(held: HeldLease) -> StaleLease:
    """Return the error of one that was overtaken."""
    return StaleLease(
        f"the lease of {held.role!r} on the stream {held.stream!r} is another's now",
        hint="nothing was done in its name; it is taken again when it is free",
    )
