"""Searches many streams for entries on the server, one stream after the other, in parts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from agentbus.core.names import escape, unescape
from agentbus.core.stream import text
from agentbus.core.timespec import stream_id
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.store.steps import Arg, Op

# The name of a stream: its queue, and its group or priority.
Place: TypeAlias = tuple[str, str]
# Maximum bytes, entries and streams that one script reads.
READ_BYTES = 1_000_000
_ENTRIES, _STREAMS = 1000, 100
# Maximum number of scripts per call: if entries are large, the call stops before it has read
# `most`.
SCRIPTS = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """The progress of a walk: the stream, and the last entry read in it, '' at its start."""

    place: Place = ("", "")
    entry: str = ""

    def __str__(self) -> str:
        return ":".join((*map(escape, self.place), self.entry))

    @classmethod
    def read(cls, given: str) -> Mark | None:
        """Return the mark that a text encodes, the first mark for '', or None if it is invalid."""
        parts = given.split(":")
        if not given:
            return cls()
        if len(parts) != 3 or (parts[2] and stream_id(parts[2]) is None):
            return None
        return cls((unescape(parts[0]), unescape(parts[1])), parts[2])


@dataclass(frozen=True, slots=True)
class WalkQuery:
    """The parameters of a walk, as of the script `find_by_envelope`.

    `until` is the newest entry that it reads, '' for any. `queues` are the values of the field `queue` that
    match, '' for entries without the field; if it is empty, all match.
    """

    how: str
    texts: tuple[str, ...]
    fields: tuple[str, ...]
    newest_first: bool = True
    until: str = ""
    queues: tuple[str, ...] = ()


def walk(
    places: Sequence[Place],
    keys: Sequence[str],
    mark: Mark,
    wanted: WalkQuery,
    *,
    hits: int,
    most: int,
    purged: Sequence[str] = (),
) -> Op[tuple[list[tuple[Place, str, list[str]]], int, Mark | None]]:
    """Return matches (stream, entry and fields), the number of entries read, and the end's mark.

    `keys` are the streams of the sorted `places`, and `purged` their sets of purged letters, if
    any. It stops at `hits` matches or after about `most` entries; the mark is None at the end.
    """
    newest = wanted.until or "+"
    begin, end = (newest, "-") if wanted.newest_first else ("-", newest)
    found: list[tuple[Place, str, list[str]]] = []
    read, scripts, at = 0, 0, bisect_left(places, mark.place)
    reached = mark.entry if at < len(places) and places[at] == mark.place else ""
    while at < len(places):
        if read >= most or len(found) >= hits or scripts >= SCRIPTS:
            return found, read, Mark(places[at], reached)
        page = keys[at : at + _STREAMS]
        hidden = purged[at : at + _STREAMS]
        starts = [f"({reached}" if reached else begin, *[begin] * (len(page) - 1)]
        asked: list[Arg] = ["XREVRANGE" if wanted.newest_first else "XRANGE"]
        asked += [len(page), min(most - read, _ENTRIES), READ_BYTES, hits - len(found), wanted.how]
        for texts in (wanted.texts, wanted.fields, wanted.queues):
            asked += [len(texts), *texts]
        for start in starts:
            asked += (start, end)
        reply = yield Script("find_by_envelope", [*page, *hidden], asked)
        scripts += 1
        more, stopped, last, *rows = reply
        read += more
        found += [
            (places[at + number - 1], text(one), [*map(text, values)])
            for number, one, *values in rows
        ]
        at += stopped - 1 if stopped else len(page)
        reached = text(last) if stopped else ""
    return found, read, None
