"""Reads the entries of a stream after a checkpoint, and detects missing entries."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from agentbus.core.errors import EventsLost
from agentbus.core.stream import position, text
from agentbus.events import leases
from agentbus.events.event import created, decode
from agentbus.events.leases import RELAY
from agentbus.events.redis import check, info
from agentbus.events.tables import entry_id, previous
from agentbus.store.steps import Command, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.events.event import StreamEvent
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.redis import RedisClient
    from agentbus.events.tables import Position

_START = (0, 0)
_AT_ONCE = 500
# A lag beyond 10,000 events is an alert.
_MOST_BEHIND = 10_001


@dataclass(frozen=True, slots=True)
class MissingEvents:
    """Events lost on the server and in the outbox: last position and row, and maximum number."""

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
        self._entries: dict[str, list[bytes]] = {}

    def past(self, held: HeldLease, at: Position, count: int) -> list[str]:
        """Return ids of entries after a checkpoint; none if earlier entries must be republished.

        Raises `EventsLost` if events are lost.
        """
        asked: list[tuple[str | bytes | int, ...]] = [
            ("XRANGE", self._key, "-", "+", "COUNT", 1),
            ("XRANGE", self._key, f"({entry_id(at)}", "+", "COUNT", count),
        ]
        first, entries = self._server.batch(asked)
        for reply in (first, entries):
            check(reply)
        start = position(text(first[0][0])) if first else None
        # The entry at the checkpoint may be gone, usually because every consumer has passed it.
        if (start is None or start > at) and self._behind(held, at, start):
            return []
        self._entries = {text(entry_id): flat for entry_id, flat in entries}
        return list(self._entries)

    def event(self, entry_id: str) -> StreamEvent:
        """Return the event of an entry that the last `past` found, decoded at each call.

        Raises `ValueError` if another program wrote the entry.
        """
        return decode(self._stream, entry_id, self._entries[entry_id])

    def end(self) -> Position:
        """Return the last id of the stream, 0-0 if it does not exist."""
        (about,) = self._server.batch([("XINFO", "STREAM", self._key)])
        return position(text(info(about).get("last-generated-id", b"0-0")))

    def between(self, at: Position, to: Position) -> Iterator[StreamEvent]:
        """Yield the events on the stream after a checkpoint, up to a position."""
        while at < to:
            entries = self._server.ask(
                Command("XRANGE", self._key, f"({entry_id(at)}", entry_id(to), "COUNT", _AT_ONCE)
            )
            if not entries:
                return
            for each, flat in entries:
                # Another program may have written an entry that is not an event.
                with contextlib.suppress(ValueError):
                    yield decode(self._stream, text(each), flat)
            at = position(text(entries[-1][0]))

    def behind(self, at: Position) -> tuple[int, int | None]:
        """Return how many entries are after a checkpoint, if other ledgers publish to the stream.

        They are counted up to 10,001. The second value is when the first of them was sent, in ms since
        1970 by the clock of its database.
        """
        number, first = 0, None
        fields = self._server.ask(Command("HKEYS", self._server.keys.relay(self._stream)))
        own = f"token.{self._ledger.identity()}".encode()
        if not any(each.startswith(b"token.") and each != own for each in fields):
            return number, first
        while number < _MOST_BEHIND:
            command = ("XRANGE", self._key, f"({entry_id(at)}", "+", "COUNT", _AT_ONCE)
            entries = self._server.ask(Command(*command))
            if not entries:
                break
            if not number:
                first = created(entries[0][1])
            number += len(entries)
            at = position(text(entries[-1][0]))
        return min(number, _MOST_BEHIND), first

    def wait(self, at: Position, seconds: float) -> None:
        """Return when an entry after a checkpoint exists, or after `seconds`."""
        self._server.ask(Wait(self._key, entry_id(at), seconds))

    def lost(self, at: Position, outbox_id: int) -> MissingEvents | None:
        """Return the events lost after a checkpoint, or None."""
        first = self._server.ask(Command("XRANGE", self._key, "-", "+", "COUNT", 1))
        start = position(text(first[0][0])) if first else None
        if (start is not None and start <= at) or self._waits(at, start):
            return None
        return self._loss(at, outbox_id, start)

    def _behind(self, held: HeldLease, at: Position, start: Position | None) -> bool:
        """Tell whether the relay still has to publish events from before `start` again."""
        if self._waits(at, start):
            return True
        if (loss := self._loss(at, held.outbox_id, start)) is not None:
            raise self._lost(held, at, loss)
        return False

    def _waits(self, at: Position, start: Position | None) -> bool:
        """Tell whether the outbox has published rows between a checkpoint and the first entry."""
        tables = self._ledger.tables
        rows = sa.select(tables.outbox.c.id).where(
            *tables.published(self._stream), tables.position > at
        )
        if start is not None:
            rows = rows.where(tables.position < start)
        return self._first(rows.limit(1)) is not None

    def _first(self, wanted: sa.Select[Any]) -> sa.Row[Any] | None:
        with self._ledger.engine.connect() as connection:
            return connection.execute(wanted).first()

    def _loss(self, at: Position, outbox_id: int, start: Position | None) -> MissingEvents | None:
        # A consumer that has not handled any event begins with the first entry, so it misses
        # nothing.
        if at == _START:
            return None
        tables = self._ledger.tables
        purged = self._first(sa.select(tables.lease).where(*tables.role(self._stream, RELAY)))
        if purged is not None and (to := (purged.checkpoint_ms, purged.checkpoint_seq)) > at:
            return MissingEvents(
                to, purged.checkpoint_outbox_id, purged.checkpoint_outbox_id - outbox_id
            )
        about, (gone, trimmed) = self._server.batch(
            [
                ("XINFO", "STREAM", self._key),
                ("HMGET", self._server.keys.relay(self._stream), "gone", "trimmed"),
            ]
        )
        if trimmed is not None and (to := previous(position(text(trimmed)))) > at:
            # The relay of another ledger did not know of this consumer.
            return MissingEvents(to, outbox_id, int(gone or 0))
        if start is not None and previous(start) > at:
            # Count the entries that were removed by a program other than a relay.
            named: dict[str, Any] = info(about)
            missing = int(named.get("entries-added", 0)) - int(named.get("length", 0))
            if (missing := missing - int(gone or 0)) > 0:
                return MissingEvents(previous(start), outbox_id, missing)
        return None

    def _lost(self, held: HeldLease, at: Position, loss: MissingEvents) -> EventsLost:
        """Return the error for lost events. Raises `StaleLease` if the lease is no longer held."""
        lease = leases.mine(self._ledger.tables, held)
        if self._first(sa.select(sa.literal(1)).where(*lease)) is None:
            raise leases.stale(held)
        return EventsLost(
            f"up to {max(loss.most, 1)} events of the stream {self._stream!r} are gone that the consumer"
            f" {held.role!r} had not handled: they lie past {entry_id(at)}, and neither the server nor"
            " the outbox has them",
            hint="restore them from an archive or a backup, or skip them with skip_events(ledger, bus,"
            f" {self._stream!r}, {held.role!r})",
            shell_hint="restore them from an archive or a backup, or skip them with 'agentbus events skip"
            f" {shlex.quote(self._stream)} {shlex.quote(held.role)}'",
        )
