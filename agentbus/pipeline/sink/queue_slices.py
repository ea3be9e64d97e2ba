"""Sends rows to the server in slices, each one atomic step that is not repeated.

The server stores a digest of each slice: of its contents, its batch and its position in the
partition. A task that Spark repeats therefore appends only slices that an earlier attempt did not,
provided that it reads the same rows in the same order; other rows have other digests, and are
appended.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from agentbus.queues import publish
from agentbus.queues.publish import BATCH, BATCH_BYTES, full, stream_keys
from agentbus.queues.retry_stream import make_room
from agentbus.store.steps import Command, Pause, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agentbus.pipeline.sink.rows import RowTask
    from agentbus.pipeline.sink.sink_options import Sink
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# A slice takes at most this fraction of a queue's bound, so that it fits while workers take tasks.
_PART = 4


@dataclass(frozen=True, slots=True)
class Spot:
    """The part of a write that one Spark task does: its run, batch and partition.

    The server keeps the record of the last batches for `kept` seconds.
    """

    run: str
    batch: int
    partition: int
    kept: int


@dataclass(slots=True)
class QueueSlice:
    """Tasks for one stream, either all or none with dedup keys, and their digest."""

    priority: str
    is_due_later: bool = False
    is_keyed: bool = False
    rows: list[RowTask] = field(default_factory=list)
    size: int = 0
    digest: str = ""


def sliced(tasks: Iterable[RowTask], most: int) -> Iterator[QueueSlice]:
    """Group tasks into slices by priority, with tasks due later separate, keeping their order."""
    open_: dict[tuple[str, bool, bool], QueueSlice] = {}
    for row in tasks:
        payload, _, key, _, priority, when, _ = row
        place = (priority, when is not None, key is not None)
        now = open_.get(place)
        if now is None:
            now = open_[place] = QueueSlice(*place)
        now.rows.append(row)
        now.size += len(payload)
        if len(now.rows) == most or now.size >= BATCH_BYTES:
            yield open_.pop(place)
    yield from open_.values()


def signed(slices: Iterable[QueueSlice], spot: Spot) -> Iterator[QueueSlice]:
    """Compute the digest of each slice of a partition."""
    for number, each in enumerate(slices):
        words = [b"%d %d %d" % (spot.batch, number, each.is_due_later), each.priority.encode()]
        for row in each.rows:
            # JSON contains no NUL, which separates the words.
            words += row[:2]
            if row.when is not None:
                words.append(repr(row.when).encode())
        each.digest = digest(words)
        yield each


def digest(words: Iterable[bytes]) -> str:
    """Return the digest of a sequence of words."""
    return hashlib.blake2b(b"\0".join(words), digest_size=16).hexdigest()


class QueueSlices:
    """Appends slices to a queue."""

    def __init__(self, scope: Scope, sink: Sink, spot: Spot) -> None:
        self._scope = scope
        self._sink = sink
        self._spot = spot
        self._record = scope.keys.sink(spot.run, spot.partition)

    def most(self) -> Op[int]:
        """Return the maximum rows of a slice: as fits the queue, or as an earlier attempt cut."""
        spot, bound = self._spot, self._sink.bound
        fits = min(BATCH, max(1, bound // _PART))
        asked = Script(
            "fix_slice_size", (self._record,), (spot.batch, spot.kept, fits, BATCH), writes=True
        )
        before = int((yield asked))
        # A slice that exceeds the bound would wait forever.
        return before if before <= bound else fits

    def cut(self, tasks: Iterable[RowTask], most: int) -> Iterator[QueueSlice]:
        """Cut tasks into slices of at most `most` rows."""
        return signed(sliced(tasks, most), self._spot)

    def send(self, one: QueueSlice, meanwhile: Callable[[], None]) -> Op[None]:
        """Append a slice, waiting for room as the options say. Raises `QueueFull`."""
        if not one.is_due_later:
            yield from self._append(one, meanwhile)
        elif not one.is_keyed:
            yield from self._keep(one, one.rows)
        else:
            for row in one.rows:
                yield from self._keep(one, [row])

    def _append(self, one: QueueSlice, meanwhile: Callable[[], None]) -> Op[None]:
        sink, spot = self._sink, self._spot
        place = stream_keys(self._scope.keys.project, sink.name, one.priority)
        keys = [
            *(place.stream, place.queues, place.stats, self._record),
            *(place.order, place.metrics, place.readers, place.retries),
        ]
        words: list[Arg] = []
        for payload, meta, key, ordering, *_ in one.rows:
            words += (payload, meta, ordering or "")
            if key is not None:
                keys.append(self._scope.keys.seen(sink.name, key))

        def step(how: str, asks: int) -> Script:
            head = (spot.batch, spot.kept, one.digest, asks, sink.name, sink.bound, how)
            tail = (round(sink.window), place.suffix, self._scope.agent)
            found = Script("sink_queue", keys, (*head, *tail, *words), writes=True)
            found.meanwhile = meanwhile
            return found

        yield from self._until_there_is_room(step, one.priority)

    def _keep(self, one: QueueSlice, rows: list[RowTask]) -> Op[None]:
        """Store tasks until they are due, all or none; a task with a dedup key is stored alone."""
        sink, keys = self._sink, self._scope.keys
        seen = [keys.seen(sink.name, row.key) for row in rows if row.key is not None]
        once = digest(word.encode() for word in (self._record, one.digest, *seen))
        bodies: list[Arg] = []
        yield from publish.date(self._scope, [row.task for row in rows])
        for row in rows:
            _, words, _, ordering = publish.stored_fields(
                self._scope, row.task, one.priority, None, None
            )
            plain = [word if isinstance(word, str) else word.decode() for word in words]
            assert row.when is not None
            bodies += (*row.when, orjson.dumps([one.priority, ordering or "", *plain]))
        place = stream_keys(keys.project, sink.name, one.priority)
        where = (
            *(keys.delayed(sink.name), keys.bodies(sink.name), keys.queues, place.stats),
            *(keys.once(f"sink.{once}"), place.stream, keys.bell(sink.name)),
            *(place.metrics, place.readers, keys.after(sink.name), place.retries),
            *(keys.ids(sink.name), *seen),
        )
        suffix = stream_keys(keys.project, sink.name, "normal").suffix

        def step(how: str, asks: int) -> Script:
            # A script for several tasks does not count a refusal.
            head = (asks if how == "refuse" else 1, sink.name, sink.bound, round(sink.window))
            return Script("schedule", where, (*head, suffix, once, *bodies), writes=True)

        yield from self._until_there_is_room(step, one.priority)

    def _until_there_is_room(self, step: Callable[[str, int], Script], priority: str) -> Op[None]:
        """Send a slice until it is accepted; the timeout counts while the queue is unchanged."""
        sink, monotonic = self._sink, self._scope.monotonic
        pause, moved, asks, before = _FIRST_PAUSE, monotonic(), 1, None
        how = sink.on_full
        while True:
            reply = yield step(how, asks)
            if reply[0] != b"full":
                return
            if asks and reply[3]:
                asks = int((yield from make_room(self._scope, sink.name, priority, reply)))
                continue
            if how != "wait":
                raise full(sink.name, sink.bound, reply)
            # Other publishers may fill the room that workers make: the queue stays full, but makes
            # progress.
            published = yield Command("HGET", self._scope.keys.stats(sink.name), "published")
            now, state = monotonic(), (published, int(reply[1]))
            if state != before:
                before, moved = state, now
            if now - moved >= sink.timeout:
                # Try again, so that the refusal is counted.
                how = "refuse"
            else:
                yield Pause(pause)
                pause, asks = min(pause * 2, _LONGEST_PAUSE), 1
