"""Plans reads: the ends of streams, their lost entries, and the ranges to read.

The server counts the entries ever added to a stream. From a position `(id, added)` the number of
lost entries is therefore exact: those added since, minus those that exist.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.core.errors import BackendUnavailable
from agentbus.core.stream import position, text
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.store.steps import Batch, Script, ServerReply, floor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

T = TypeVar("T")

START = "0-0"
# Entries that one script examines, in about 15 ms of server time.
_LOOKED_AT = 10_000
_AT_ONCE = 200
# To cut a stream without counting, sample its density in this many places, with this many entries
# each.
_PLACES, _ENTRIES = 64, 16


@dataclass(frozen=True, slots=True)
class Head:
    """The server's figures of a stream: the numbers of entries ever added, and existing.

    `last` is the highest id that the stream ever had. `first` and `final` are the ids of its first
    and last entries, None if it is empty; `deleted` is the highest id that was deleted singly,
    rather than trimmed.
    """

    last: str
    added: int
    length: int
    first: str | None
    final: str | None = field(default=None, compare=False)
    deleted: str = field(default=START, compare=False)

    @property
    def end(self) -> ReadPosition:
        """The position after all entries: at the last entry, if no later one was ever added.

        A program may have set the highest id above it.
        """
        whole = self.final is not None and older(self.deleted, self.final)
        return ReadPosition(self.final if self.final and whole else self.last, self.added)

    @property
    def removed(self) -> int:
        """The number of entries that were removed."""
        return max(0, self.added - self.length)

    @property
    def trimmed(self) -> str:
        """The id up to which entries were trimmed, if any."""
        if not self.removed:
            return START
        return self.last if self.first is None else before(self.first)


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of a reader: the last id read, and the number of entries added until then."""

    id: str = START
    added: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of a stream after one id, up to and including another.

    `expected` is their number when the range was planned, None if they were not counted. `added` is
    the number of entries added in the range, if only the server's counters gave `expected`.
    """

    stream: str
    after: str
    until: str
    expected: int | None = None
    added: int | None = None


def look(scope: Scope, names: Sequence[str]) -> Op[dict[str, Head]]:
    """Return the heads of the streams that exist."""
    found = {}
    # Raise or retry an error that concerns all commands here; errors of single commands follow
    # below.
    yield floor()
    for at in range(0, len(names), _AT_ONCE):
        page = names[at : at + _AT_ONCE]
        replies = yield Batch([("XINFO", "STREAM", scope.keys.stream(name)) for name in page])
        for name, reply in zip(page, replies, strict=True):
            if not isinstance(reply, ServerReply):
                found[name] = _head(reply)
            elif reply.code not in ("ERR", "WRONGTYPE"):
                # The reply is not about a missing key, or a key of another type.
                raise BackendUnavailable(
                    f"the stream {name} could not be looked at: {reply}", hint="try again"
                )
    return found


def gone(start: ReadPosition, end: ReadPosition, head: Head) -> int:
    """Return the number of entries after a position that were trimmed, by the server's counters.

    Entries that were deleted one by one may not be included; counting the existing entries finds those.
    """
    return min(max(0, head.removed - start.added), end.added - start.added)


def gap(
    name: str, lost: int | None, start: ReadPosition, end: ReadPosition, head: Head
) -> StreamGap:
    """Return the gap of `lost` entries between two positions."""
    at = min(head.trimmed, end.id, key=position)
    if not older(start.id, at) or (lost is not None and lost > gone(start, end, head)):
        # The entries were deleted from the middle, or trimmed since the last request: their ids are
        # unknown.
        return StreamGap(name, lost, end.id, start.id, None)
    return StreamGap(name, lost, at, start.id, head.first if older(at, end.id) else None)


def older(one: str, other: str) -> bool:
    """Tell whether one id precedes another."""
    return position(one) < position(other)


def before(entry_id: str) -> str:
    """Return the id right before another."""
    milliseconds, sequence = position(entry_id)
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}-{2**64 - 1}" if milliseconds else START


def steps(
    scope: Scope, name: str, after: str, until: str, size: int, most: int | None = None
) -> Op[list[Range]]:
    """Cut the entries between two ids into ranges of `size` entries, counted exactly.

    `most` limits the number of entries. Costs the server about 1.4 µs per entry.
    """
    ranges: list[Range] = []
    begin = at = after
    counted = total = 0
    while True:
        wanted = min(size - counted, _LOOKED_AT)
        if most is not None:
            wanted = min(wanted, most - total)
        seen, last = yield Script("find_nth_id", (scope.keys.stream(name),), (at, until, wanted))
        counted += seen
        total += seen
        at = text(last) or at
        ended = seen < wanted or total == most
        if counted == size or (ended and counted):
            ranges.append(Range(name, begin, at, counted))
            begin, counted = at, 0
        if ended:
            return ranges


def counted(scope: Scope, name: str, after: str, until: str) -> Op[int]:
    """Return the number of entries after an id, up to and including another."""
    parts = yield from steps(scope, name, after, until, _LOOKED_AT)
    return sum(part.expected or 0 for part in parts)


def cut(scope: Scope, name: str, after: str, head: Head, parts: int) -> Op[list[Range]]:
    """Cut the entries after an id into about `parts` parts of similar size, without counting.

    It samples the density of the stream in a few dozen places, so the exact size of a part is
    unknown.
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
    """Return the times that divide a stream evenly, estimated from samples."""
    places = min(_PLACES, end - begin)
    moments = [begin + (end - begin) * n // places for n in range(places + 1)]
    replies = yield Batch(
        [
            ("XRANGE", scope.keys.stream(name), f"{low}-0", f"({high}-0", "COUNT", _ENTRIES)
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
            # Use the last id of a millisecond, so that the entries of one millisecond stay
            # together.
            marks.append((low + round((high - low) * into), 2**64 - 1))
        share += weight
    return marks


def _weight(reply: Any, low: int, high: int) -> float:
    """Estimate the number of entries between two times from the first few, in `reply`."""
    if isinstance(reply, ServerReply) or not reply:
        return 0.0
    if len(reply) < _ENTRIES:
        return float(len(reply))
    first, last = (position(text(entry[0]))[0] for entry in (reply[0], reply[-1]))
    return len(reply) * (high - first) / max(last - first, 1)


def packed(parts: Iterable[tuple[T, int]], size: int) -> list[list[T]]:
    """Group ranges or files by their (estimated) sizes into lots of about `size` entries."""
    lots: list[list[T]] = []
    room = 0
    for part, entries in parts:
        if entries > room or not lots:
            lots.append([])
            room = size
        lots[-1].append(part)
        room -= entries
    return lots


def _head(reply: Any) -> Head:
    named = {reply[i]: reply[i + 1] for i in range(0, len(reply), 2)}
    first, final = named.get(b"first-entry"), named.get(b"last-entry")
    return Head(
        last=text(named[b"last-generated-id"]),
        added=int(named[b"entries-added"]),
        length=int(named[b"length"]),
        first=text(first[0]) if first else None,
        final=text(final[0]) if final else None,
        deleted=text(named[b"max-deleted-entry-id"]),
    )
