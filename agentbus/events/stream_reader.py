"""What lies in a stream past a checkpoint, and whether anything between is missing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.core.errors import EventsLost
from agentbus.core.stream import position, text
from agentbus.events import leases
from agentbus.events.leases import RELAY
from agentbus.events.redis import LEDGER, foreign, info
from agentbus.store.steps import Command, Wait

if TYPE_CHECKING:
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.redis import RedisClient

Position = tuple[int, int]
_START = (0, 0)
# What a column of the lease can hold; no server counts so far within a millisecond.
_LAST_OF_A_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class MissingEvents:
    """Events that are nowhere any more: up to where, up to which row of the outbox, how many at most."""

    to: Position
    outbox_id: int
    most: int


class StreamReader:
    """Reads a stream for a consumer."""

    def __init__(self, ledger: Ledger, server: RedisClient, stream: str) -> None:
        self._ledger = ledger
        self._server = server
        self._stream = stream
        self._key = server.keys.events(stream)

    def past(self, held: HeldLease, at: Position, count: int) -> list[tuple[str, list[bytes]]]:
        """Return the entries past a checkpoint, none while some before them are to be published again.

        Raises `EventsLost` if some are missing for good, `EpochMismatch` if they are another ledger's.
        """
        asked: list[tuple[str | bytes | int, ...]] = [
            ("XRANGE", self._key, "-", "+", "COUNT", 1),
            ("XRANGE", self._key, f"({at[0]}-{at[1]}", "+", "COUNT", count),
            ("HGET", self._server.keys.relay(self._stream), LEDGER),
        ]
        first, entries, whose = self._server.batch(asked)
        for reply in (first, entries, whose):
            if isinstance(reply, Exception):
                raise reply
        if entries and whose is not None and text(whose) != str(self._ledger.identity()):
            raise foreign(self._stream, self._ledger)
        start = position(text(first[0][0])) if first else None
        # What was at the checkpoint may be gone, usually since every consumer has passed it.
        if (start is None or start > at) and self._behind(held, at, start):
            return []
        return [(text(entry_id), flat) for entry_id, flat in entries]

    def wait(self, at: Position, seconds: float) -> None:
        """Return when there is an entry past a checkpoint, or after so many seconds."""
        self._server.ask(Wait(self._key, f"{at[0]}-{at[1]}", seconds))

    def lost(self, at: Position, outbox_id: int) -> MissingEvents | None:
        """Return what is missing for good between a checkpoint and what is there, None if nothing is."""
        first = self._server.ask(Command("XRANGE", self._key, "-", "+", "COUNT", 1))
        start = position(text(first[0][0])) if first else None
        if (start is not None and start <= at) or self._waits(at, start):
            return None
        return self._loss(at, outbox_id, start)

    def _behind(self, held: HeldLease, at: Position, start: Position | None) -> bool:
        """Tell whether the relay has still to publish again what was before `start`."""
        if self._waits(at, start):
            return True
        if (loss := self._loss(at, held.outbox_id, start)) is not None:
            raise self._told(held, at, loss)
        return False

    def _waits(self, at: Position, start: Position | None) -> bool:
        """Tell whether the outbox has what was published between a checkpoint and what is there."""
        box = self._ledger.tables.outbox
        place = sa.tuple_(box.c.position_ms, box.c.position_seq)
        beyond = [box.c.stream == self._stream, box.c.position_ms.is_not(None), place > at]
        if start is not None:
            beyond.append(place < start)
        with self._ledger.engine.connect() as connection:
            return (
                connection.execute(sa.select(box.c.id).where(*beyond).limit(1)).first() is not None
            )

    def _loss(self, at: Position, outbox_id: int, start: Position | None) -> MissingEvents | None:
        # Who has acted on nothing yet begins with what is there.
        if at == _START:
            return None
        lease = self._ledger.tables.lease
        with self._ledger.engine.connect() as connection:
            purged = connection.execute(
                sa.select(lease).where(lease.c.stream == self._stream, lease.c.role == RELAY)
            ).first()
        if purged is not None and (to := (purged.checkpoint_ms, purged.checkpoint_seq)) > at:
            return MissingEvents(
                to, purged.checkpoint_outbox_id, purged.checkpoint_outbox_id - outbox_id
            )
        if start is not None and before(start) > at and (missing := self._trimmed()) > 0:
            return MissingEvents(before(start), outbox_id, missing)
        return None

    def _trimmed(self) -> int:
        """Return how many entries were removed that no relay removed."""
        about, gone = self._server.batch(
            [
                ("XINFO", "STREAM", self._key),
                ("HGET", self._server.keys.relay(self._stream), "gone"),
            ]
        )
        named: dict[str, Any] = info(about)
        return int(named.get("entries-added", 0)) - int(named.get("length", 0)) - int(gone or 0)

    def _told(self, held: HeldLease, at: Position, loss: MissingEvents) -> EventsLost:
        """Return the error, unless the lease is another's, who passed them since: then `StaleLease`."""
        with self._ledger.engine.connect() as connection:
            mine = leases.mine(self._ledger.tables, held)
            if connection.execute(sa.select(sa.literal(1)).where(*mine)).first() is None:
                raise leases.stale(held)
        return EventsLost(
            f"up to {max(loss.most, 1)} events of the stream {self._stream!r} are gone that the consumer"
            f" {held.role!r} had not handled: they lie past {at[0]}-{at[1]}, and neither the server nor"
            " the outbox has them",
            hint="restore them from an archive or a backup, or skip them with skip_events(ledger, bus,"
            f" {self._stream!r}, {held.role!r})",
            shell_hint="restore them from an archive or a backup, or skip them with 'agentbus events skip"
            f" {shlex.quote(self._stream)} {shlex.quote(held.role)}'",
        )


def before(at: Position) -> Position:
    """Return the last position before another one that an id of the server's can have."""
    return (at[0], at[1] - 1) if at[1] else (at[0] - 1, _LAST_OF_A_MS)
