"""One stream of a relay: publishes waiting events, and again events that the server lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import StaleLease
from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.events import leases, outbox, readers
from agentbus.events.event import words
from agentbus.events.redis import check, foreign, info
from agentbus.events.tables import entry_id
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.core.errors import AgentBusError
    from agentbus.events.cleanup import Cleaner
    from agentbus.events.leases import HeldLease
    from agentbus.events.ledger import Ledger
    from agentbus.events.outbox import StreamMarks
    from agentbus.events.redis import RedisClient
    from agentbus.events.tables import Position

# A script's arguments must fit on the server's Lua stack of 8,000 values.
_ROWS_AT_ONCE = 500
_BYTES_AT_ONCE = 4 * 1024 * 1024
_LOOK_AT_ONCE = 500
_PURGES_A_TURN = 20
_START = (0, 0)
# Replies of the script that trims.
_STALE, _MOVED = -1, -2


class RelayStream:
    """A stream whose lease the relay holds."""

    def __init__(
        self,
        ledger: Ledger,
        server: RedisClient,
        held: HeldLease,
        owner: str,
        lease: float,
        bound: int,
        at: Callable[[str], None],
    ) -> None:
        self.held = held
        self._ledger = ledger
        self._server = server
        self._owner = owner
        self._lease = lease
        self._bound = bound
        self._at = at
        self._keys = (server.keys.events(held.stream), server.keys.relay(held.stream))
        self._readers = server.keys.event_readers(held.stream)
        # The needs of readers as recorded in the ledger.
        self._needs: dict[bytes, bytes] = {}
        # The ledger as the server knows it.
        self._name = str(ledger.identity())
        # The id of the ledger's last event on the server, at the last check or write; None before the
        # first check.
        self._last: str | None = None
        # The last id on the server at the last check.
        self._end = _START
        self._floor = _START
        self._cut = False

    def publish(self, count: int = _ROWS_AT_ONCE) -> int:
        """Publish up to `count` rows; returns how many. Raises `StaleLease`, `BackendUnavailable`."""
        if self._last is None:
            self.reconcile()
        with self._ledger.engine.connect() as connection:
            rows = outbox.waiting(
                connection, self._ledger.tables, self.held.stream, min(count, _ROWS_AT_ONCE)
            )
        if not rows:
            return 0
        self._at("relay.read")
        ids = self._add(rows)
        if not ids:
            return 0
        self._at("relay.added")
        places = [position(each) for each in ids]
        with self._ledger.transaction() as connection:
            pairs = [(row.id, at) for row, at in zip(rows, places, strict=False)]
            outbox.mark(connection, self._ledger.tables, self.held, pairs)
        self._at("relay.marked")
        return len(ids)

    def _add(self, rows: Sequence[Any]) -> list[str]:
        argv: list[str | bytes | int] = []
        size = 0
        for row in rows:
            entry = words(row, self._name)
            argv += [len(entry), *entry]
            size += len(row.payload)
            if size > _BYTES_AT_ONCE:
                break
        assert self._last is not None
        head = (*self._state(), entry_id(self._floor), int(self._cut), self._bound)
        reply = self._server.ask(Script("publish_events", self._keys, (*head, *argv)))
        state = text(reply[0])
        if state == "stale":
            raise self._overtaken()
        if state == "moved":
            # Another relay of the ledger wrote, or the server lost writes: check the stream before
            # adding entries.
            self._last = None
            return []
        self._cut = False
        ids = [text(each) for each in reply[1:]]
        if ids:
            self._last = ids[-1]
        return ids

    def _state(self) -> tuple[str | int, ...]:
        """Return what the server must still know of this relay for its scripts to run."""
        assert self._last is not None
        return (self._name, self.held.token, self._owner, self._last)

    def _overtaken(self) -> AgentBusError:
        """Return the error for a relay of the same ledger that the server met later."""
        try:
            with self._ledger.transaction() as connection:
                leases.renew(connection, self._ledger.tables, self.held, self._lease)
        except StaleLease as error:
            return error
        # No relay of this database has acquired the lease since.
        return foreign(self.held.stream, self._ledger)

    def reconcile(self) -> int:
        """Mark rows that the server lost as waiting again; returns their number.

        A missing entry means that all later ones are missing, too: a server loses its tail, or
        everything. If the oldest entry is missing, another program trimmed the stream: all events
        are then published again, and replace the remaining entries. Entries of other ledgers that
        are removed with these are published again by their own relays.
        """
        stream, tables = self.held.stream, self._ledger.tables
        with self._ledger.engine.connect() as connection:
            marks = outbox.marks(connection, tables, stream)
        about, known, low, top = self._look(marks)
        self._floor = max(self._floor, marks.floor)
        lost = 0
        if marks.low is not None and not (low and top):
            passed = marks.passed or _START
            beyond = passed if not low else self._kept(_of(marks.top), _of(marks.low))
            with self._ledger.transaction() as connection:
                lost = outbox.unmark(connection, tables, self.held, beyond)
            # If the server was wiped, other relays may already have published their events again.
            self._cut = not low and known is not None
        self._end = position(text(about["last-generated-id"])) if about else _START
        self._last = entry_id(min(known or _START, self._end))
        return lost

    def tidy(self, cleaner: Cleaner) -> None:
        """Delete events that all consumers and readers have passed, if there is a consumer."""
        tables = self._ledger.tables
        with self._ledger.engine.connect() as connection:
            passed = outbox.marks(connection, tables, self.held.stream).passed
        if self._last is None:
            return
        own = readers.consumer(self._ledger, "")
        keys, head = (*self._keys, self._readers), (*self._state(), entry_id(passed or _START), own)
        gone, *reply = self._server.ask(Script("trim_events", keys, head))
        if gone == _STALE:
            raise self._overtaken()
        if gone == _MOVED:
            self._last = None
            return
        needs = dict(zip(reply[::2], reply[1::2], strict=True))
        if needs != self._needs:
            with self._ledger.transaction() as connection:
                last = max(self._end, self._floor)
                readers.note(connection, tables, self.held, needs, passed or _START, last)
            self._needs = needs
        if passed is None:
            return
        for _ in range(_PURGES_A_TURN):
            with self._ledger.transaction() as connection:
                if not outbox.purge(connection, tables, self.held, passed):
                    break
        cleaner.clean(self.held.stream)

    def _look(self, marks: StreamMarks) -> tuple[dict[str, Any], Position | None, bool, bool]:
        """Return the server's data on the stream, and whether it has the first and last rows.

        The second value is the position of the ledger's last event, None if the server knows none.
        """
        key = self._keys[0]
        rows = [marks.low, marks.top]
        asked: list[tuple[str | bytes | int, ...]] = [("XINFO", "STREAM", key)]
        asked += [("XRANGE", key, *(2 * (entry_id(_of(row)),))) for row in rows if row is not None]
        asked.append(("HGET", self._keys[1], f"last.{self._name}"))
        about, *ranges, last = self._server.batch(asked)
        check(last)
        known = None
        if last is not None:
            sound = stream_id(text(last)) is not None and "-" in text(last)
            known = position(text(last)) if sound else _START
        if marks.low is None:
            return info(about), known, True, True
        low, top = (
            self._holds(entries, row.id) for entries, row in zip(ranges, rows, strict=True) if row
        )
        return info(about), known, low, top

    def _kept(self, top: Position, low: Position) -> Position:
        """Return the highest position at which the server still has the published entry."""
        before, key = top, self._keys[0]
        while True:
            with self._ledger.engine.connect() as connection:
                rows = outbox.published(
                    connection,
                    *(self._ledger.tables, self.held.stream, low, before),
                    count=_LOOK_AT_ONCE,
                )
            if not rows:
                return low
            asked: list[tuple[str | bytes | int, ...]] = [
                ("XRANGE", key, *(2 * (entry_id(_of(row)),))) for row in rows
            ]
            for row, entries in zip(rows, self._server.batch(asked), strict=True):
                if self._holds(entries, row.id):
                    return _of(row)
            before = _of(rows[-1])

    def _holds(self, entries: Any, outbox_id: int) -> bool:
        """Tell whether the entry that was read is an event of this ledger's."""
        check(entries)
        if not entries:
            return False
        flat = entries[0][1]
        named = {flat[i]: flat[i + 1] for i in range(0, len(flat) - 1, 2)}
        place = (named.get(b"ledger"), named.get(b"outbox_id"))
        return bool(place == (self._name.encode(), str(outbox_id).encode()))


def _of(row: Any) -> Position:
    return row.position_ms, row.position_seq
