"""Plans what is to be read: how far each stream has come, what of it is gone, where to cut it.

The server counts the entries that a stream ever had. So with a position `(id, added)` the entries that
were lost need no guess: those added since, less those that are there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import BackendUnavailable, EpochMismatch
from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.store.steps import Batch, Script, ServerReply, floor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

START = "0-0"
# What one script looks at: about 15 ms of the server's time.
_LOOKED_AT = 10_000
_AT_ONCE = 200
# Where a stream is cut without counting, its density is looked up at so many places, so many entries each.
_PLACES, _ENTRIES = 64, 16


@dataclass(frozen=True, slots=True)
class Head:
    """What the server says of a stream: how many entries it ever had, and has now.

    `first` and `last` are the ids of its ends; one that is empty has no first.
    """

    last: str
    added: int
    length: int
    first: str | None

    @property
    def removed(self) -> int:
        """How many entries are gone."""
        return max(0, self.added - self.length)

    @property
    def trimmed(self) -> str:
        """The id up to which entries were trimmed away, if any were."""
        if not self.removed:
            return START
        return self.last if self.first is None else before(self.first)


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """How far a reader has come: the last id that it read, and how many entries there were by then."""

    id: str = START
    added: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of a stream after one id, up to and with another.

    `expected` is how many there were when it was planned, None if they were not counted.
    """

    stream: str
    after: str
    until: str
    expected: int | None = None


def look(scope: Scope, names: Sequence[str]) -> Op[dict[str, Head]]:
    """Return the heads of those streams that are there."""
    found = {}
    # What makes all of them fail is told, or tried again, here: the errors of a batch are looked at below.
    yield floor()
    for at in range(0, len(names), _AT_ONCE):
        page = names[at : at + _AT_ONCE]
        replies = yield Batch([("XINFO", "STREAM", key(scope, name)) for name in page])
        for name, reply in zip(page, replies, strict=True):
            if not isinstance(reply, ServerReply):
                found[name] = _head(reply)
            elif reply.code not in ("ERR", "WRONGTYPE"):
                # Neither no such key, nor one that is no stream.
                raise BackendUnavailable(
                    f"the stream {name} could not be looked at: {reply}", hint="try again"
                )
    return found


def gone(start: ReadPosition, end: ReadPosition, head: Head) -> int:
    """Return how many entries after a position were trimmed away, as far as the server's figures tell.

    Entries that somebody deleted one by one may be missing here; they are when what is there is counted.
    """
    return min(max(0, head.removed - start.added), end.added - start.added)


def gap(
    name: str, lost: int | None, start: ReadPosition, end: ReadPosition, head: Head
) -> StreamGap:
    """Return the gap of so many entries between two positions."""
    at = min(head.trimmed, end.id, key=position)
    if not older(start.id, at) or (lost is not None and lost > gone(start, end, head)):
        # Gone from the middle, one by one, or trimmed since the server was looked at: where, nobody knows.
        return StreamGap(name, lost, end.id, start.id, None)
    return StreamGap(name, lost, at, start.id, head.first if older(at, end.id) else None)


def key(scope: Scope, name: str) -> str:
    """Return the key of a stream."""
    return scope.keys.stream(name)


def news(
    heads: Mapping[str, Head], positions: Mapping[str, ReadPosition]
) -> dict[str, tuple[ReadPosition, ReadPosition]]:
    """Return for each stream with something new where to start and where to end.

    Raises `EpochMismatch` where the server is behind a position: it went back in time.
    """
    found = {}
    for name, head in heads.items():
        start = positions.get(name, ReadPosition())
        if went_back(head, start):
            raise EpochMismatch(
                f"the stream {name} was read up to {start.id}, its entry {start.added}, and the server now"
                f" counts {head.added} entries up to {head.last}: it went back in time (restored from a"
                " backup, or failed over to a late replica)",
                hint="if that is intended: an archive goes on with new_epoch=True, a query of your own with"
                " a new checkpoint",
                shell_hint="if that is intended: an archive goes on with --new-epoch, a query of your own"
                " with a new checkpoint",
            )
        if _fewer(head, start):
            # It was deleted and made again since: all that it has is new.
            start = ReadPosition(start.id, 0)
        if head.added > start.added:
            found[name] = (start, ReadPosition(head.last, head.added))
    return found


def went_back(head: Head, start: ReadPosition) -> bool:
    """Tell whether a stream is an earlier state of what was read; one that was made anew is not."""
    if older(head.last, start.id):
        return True
    # What is there begins in what was read, and yet fewer entries were ever added.
    return _fewer(head, start) and not _anew(head, start)


def _fewer(head: Head, start: ReadPosition) -> bool:
    """Tell whether a stream counts fewer entries than the one that was read must have had by now."""
    if head.added == start.added:
        return head.first is not None and older(start.id, head.last)
    return head.added < start.added


def _anew(head: Head, start: ReadPosition) -> bool:
    return head.first is None or older(start.id, head.first)


def going_on(
    scope: Scope,
    heads: Mapping[str, Head],
    positions: Mapping[str, ReadPosition],
    may: Callable[[str], bool],
) -> Op[dict[str, ReadPosition]]:
    """Return the positions, those of streams that went back and `may` moved to where to go on.

    One that has grown past its old count since is known by more entries than were counted.
    """
    found = dict(positions)
    for name, head in heads.items():
        start = positions.get(name)
        if start is None or not may(name):
            continue
        back = went_back(head, start)
        if back or (older(start.id, head.last) and not _anew(head, start)):
            at = yield from resumed(scope, name, start, head)
            if back or at.added < start.added:
                found[name] = at
    return found


def resumed(scope: Scope, name: str, start: ReadPosition, head: Head) -> Op[ReadPosition]:
    """Return the position from which to go on, of a reader that is told that its server went back."""
    after = start.id if older(start.id, head.last) else head.last
    parts = yield from steps(scope, name, after, head.last, _LOOKED_AT)
    return ReadPosition(after, head.added - sum(part.expected or 0 for part in parts))


def older(one: str, other: str) -> bool:
    """Tell whether an id comes before another."""
    return position(one) < position(other)


def before(entry_id: str) -> str:
    """Return the id right before another."""
    milliseconds, sequence = position(entry_id)
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}-{2**64 - 1}" if milliseconds else START


def is_id(value: object) -> bool:
    """Tell whether a value is the full id of an entry."""
    return isinstance(value, str) and "-" in value and stream_id(value) is not None


def steps(
    scope: Scope, name: str, after: str, until: str, size: int, most: int | None = None
) -> Op[list[Range]]:
    """Cut the entries between two ids into ranges of `size` entries, counted exactly.

    With `most`, no more than so many entries. Costs the server about 1.4 µs an entry.
    """
    ranges: list[Range] = []
    begin = at = after
    counted = total = 0
    while True:
        wanted = min(size - counted, _LOOKED_AT)
        if most is not None:
            wanted = min(wanted, most - total)
        seen, last = yield Script("stride", (key(scope, name),), (at, until, wanted))
        counted += seen
        total += seen
        at = text(last) or at
        ended = seen < wanted or total == most
        if counted == size or (ended and counted):
            ranges.append(Range(name, begin, at, counted))
            begin, counted = at, 0
        if ended:
            return ranges


def cut(scope: Scope, name: str, after: str, head: Head, parts: int) -> Op[list[Range]]:
    """Cut the entries after an id into about as many parts of about the same size, without counting.

    Looks at how dense the stream is at a few dozen places. What a part holds is not known: for those who
    count what they read.
    """
    begin = max(position(after), position(head.first or after))
    end = position(head.last)
    if parts < 2 or begin >= end:
        return [Range(name, after, head.last)]
    if end[0] - begin[0] < parts:
        marks = [(end[0], begin[1] + (end[1] - begin[1]) * n // parts) for n in range(1, parts)]
        marks = marks if begin[0] == end[0] and end[1] - begin[1] >= parts else []
    else:
        marks = yield from _marks(scope, name, begin[0], end[0], parts)
    ids = [after, *(f"{ms}-{seq}" for ms, seq in sorted(set(marks))), head.last]
    return [Range(name, low, high) for low, high in itertools.pairwise(ids) if older(low, high)]


def _marks(scope: Scope, name: str, begin: int, end: int, parts: int) -> Op[list[tuple[int, int]]]:
    """Return the moments that part a stream evenly, as far as samples of it tell."""
    places = min(_PLACES, end - begin)
    moments = [begin + (end - begin) * n // places for n in range(places + 1)]
    replies = yield Batch(
        [
            ("XRANGE", key(scope, name), f"{low}-0", f"({high}-0", "COUNT", _ENTRIES)
            for low, high in itertools.pairwise(moments)
        ]
    )
    weights = [
        _weight(reply, low, high)
        for reply, low, high in zip(replies, moments, moments[1:], strict=False)
    ]
    total, share = sum(weights), 0.0
    marks: list[tuple[int, int]] = []
    for weight, low, high in zip(weights, moments, moments[1:], strict=False):
        while (
            weight and len(marks) < parts - 1 and share + weight >= total * (len(marks) + 1) / parts
        ):
            into = (total * (len(marks) + 1) / parts - share) / weight
            # The last id of a moment, so that the entries of one moment stay together.
            marks.append((low + round((high - low) * into), 2**64 - 1))
        share += weight
    return marks


def _weight(reply: Any, low: int, high: int) -> float:
    """Return about how many entries lie between two moments, of which `reply` has the first few."""
    if isinstance(reply, ServerReply) or not reply:
        return 0.0
    if len(reply) < _ENTRIES:
        return float(len(reply))
    first, last = (position(text(entry[0]))[0] for entry in (reply[0], reply[-1]))
    return len(reply) * (high - first) / max(last - first, 1)


def packed(ranges: Iterable[tuple[Range, int]], size: int) -> list[list[Range]]:
    """Put ranges with their (estimated) sizes together, so that each lot has about `size` entries."""
    lots: list[list[Range]] = []
    room = 0
    for part, entries in ranges:
        if entries > room or not lots:
            lots.append([])
            room = size
        lots[-1].append(part)
        room -= entries
    return lots


def _head(reply: Any) -> Head:
    named = {reply[i]: reply[i + 1] for i in range(0, len(reply), 2)}
    first = named.get(b"first-entry")
    return Head(
        last=text(named[b"last-generated-id"]),
        added=int(named[b"entries-added"]),
        length=int(named[b"length"]),
        first=text(first[0]) if first else None,
    )
