"""Reads streams backwards for entries with given field values; long values are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.stream import fields, position, text
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum bytes of a value that a page shows unexpanded.
FOLDED = 4_000
# Maximum entries of a stream, and maximum streams, that one script reads.
_EXAMINED, _STREAMS = 1_000, 100


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of the `number`th stream: its id, its fields, and its longest value's uncut size."""

    number: int
    id: str
    fields: dict[str, str]
    size: int


def backwards(
    scope: Scope,
    key: str,
    wanted: Mapping[str, str],
    *,
    before: str | None = None,
    since: str = "-",
    limit: int,
    scripts: int | None = None,
    width: int = FOLDED,
) -> Op[tuple[list[StreamEntry], str | None]]:
    """Return a stream's newest matching entries, and the id before which there are more.

    That id is None at the stream's end. `before` is such an id, `since` the id to stop at. An empty
    value in `wanted` matches an absent field. At most `scripts` scripts run, each of which examines
    1,000 entries, or fewer if they are large.
    """
    found: list[StreamEntry] = []
    begin = "+" if before is None else f"({before}"
    while len(found) < limit:
        left = limit - len(found)
        argv: tuple[str | int, ...] = (begin, since, _EXAMINED, left, width, *_pairs(wanted))
        ((following, *entries),) = yield Script("find_by_fields", (key,), argv)
        found += (_entry(0, one) for one in entries)
        begin = text(following)
        scripts = None if scripts is None else scripts - 1
        if not begin or scripts == 0:
            break
    return found, begin.removeprefix("(") or None


def newest(
    scope: Scope,
    keys: Sequence[str],
    wanted: Mapping[str, str],
    *,
    limit: int,
    examined: int,
    since: str = "-",
    width: int = FOLDED,
) -> Op[list[StreamEntry]]:
    """Return the newest matching entries of several streams, newest first.

    It examines the newest `examined` entries of each stream, or fewer if they are large, back to
    `since`.
    """
    found: list[StreamEntry] = []
    at = 0
    while at < len(keys):
        argv: tuple[str | int, ...] = ("+", since, examined, limit, width, *_pairs(wanted))
        reply = yield Script("find_by_fields", keys[at : at + _STREAMS], argv)
        for number, (_, *entries) in enumerate(reply, at):
            found += (_entry(number, one) for one in entries)
        at += max(1, len(reply))
        found.sort(key=lambda one: position(one.id), reverse=True)
        del found[limit:]
        if len(found) == limit:
            # Entries older than all of these are not needed.
            since = found[-1].id
    return found


def _entry(number: int, reply: Sequence[Any]) -> StreamEntry:
    entry_id, size, flat = reply
    return StreamEntry(number, text(entry_id), fields(flat), int(size))


def _pairs(wanted: Mapping[str, str]) -> Iterator[str]:
    return (word for pair in wanted.items() for word in pair)
