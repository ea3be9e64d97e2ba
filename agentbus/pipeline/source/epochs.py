"""Tells whether streams continue from a position, were created again, or went back in time.

The server counts the entries ever added to a stream, and trims only from its beginning. A stream
that continues therefore has as many entries after a position as were added since; fewer only if
everything up to the position was trimmed, or later entries were deleted one by one. It still has
the entry at the position, unless that was trimmed or deleted. A stream that was created again has
no entries up to the position; a stream that went back has some.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from agentbus.core.errors import EpochMismatch
from agentbus.core.stream import position
from agentbus.pipeline.source import planning
from agentbus.pipeline.source.planning import Head, ReadPosition, older
from agentbus.store.steps import Batch, ServerReply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_AT_ONCE = 200
# The second part of an id that only precedes another id; no server creates it.
_NO_ENTRY = 2**64 - 1
_NEVER_PROMOTED = b"0" * 40


class Epoch(enum.Enum):
    """The state of a stream compared with an earlier position.

    An `UNSURE` stream has no entries up to the position, and its other entries do not fit: it was
    created again and then trimmed, or went back and was trimmed beyond the position.
    """

    SAME = "same"
    RECREATED = "recreated"
    BACK = "back"
    UNSURE = "unsure"


def epoch(head: Head, start: ReadPosition, *, there: bool = True) -> Epoch:
    """Return the state of a stream that was read up to `start`, judged by its ends.

    `there` is true if the entry at the position exists. Even the same stream may have more or fewer
    entries than it should, which only `fits` detects.
    """
    if start == ReadPosition():
        return Epoch.SAME
    if not head.added and head.first is None and head.last == planning.START:
        return Epoch.RECREATED
    if older(head.last, start.id):
        return Epoch.BACK
    came = head.added - start.added
    if head.last == start.id:
        return Epoch.SAME if came == 0 else Epoch.BACK
    if not holds(head, start):
        if head.length <= came:
            return Epoch.SAME
        return Epoch.RECREATED if head.length == head.added else Epoch.UNSURE
    if not there and older(head.deleted, start.id):
        return Epoch.BACK
    # Another program may have set the last id without adding an entry.
    news = older(start.id, head.final or head.last)
    return Epoch.SAME if came > 0 or (came == 0 and not news) else Epoch.BACK


def holds(head: Head, start: ReadPosition) -> bool:
    """Tell whether a stream still has entries up to a position."""
    return head.first is not None and not older(start.id, head.first)


def fits(start: ReadPosition, came: int, rows: int, head: Head | None) -> bool:
    """Tell whether `rows` entries after a position are possible if `came` entries were added.

    `head` is the stream's head after the count; None if the stream is gone.
    """
    if rows >= came or head is None:
        return rows <= came
    return not holds(head, start) or older(start.id, head.deleted)


def continued(
    scope: Scope,
    heads: Mapping[str, Head],
    positions: Mapping[str, ReadPosition],
    *,
    counts: Callable[[str], bool],
    may: Callable[[str], bool] = lambda _name: False,
) -> Op[tuple[dict[str, ReadPosition], dict[str, Epoch]]]:
    """Return where to continue each stream, and the streams that went back, if `may` allows it.

    Their state is `BACK` or `UNSURE`. If `counts` is true for a stream, its new entries are counted
    (1.4 µs of server time per entry), which may change the result. Raises `EpochMismatch`.
    """
    epochs = yield from _epochs(scope, heads, positions, counts)
    starts = dict(positions)
    back: dict[str, Epoch] = {}
    for name, found in epochs.items():
        start, head = positions[name], heads[name]
        if found is Epoch.UNSURE and (yield from _stood(start)):
            found = Epoch.RECREATED
        if found is Epoch.RECREATED:
            starts[name] = ReadPosition(start.id, 0)
        elif found is not Epoch.SAME:
            if not may(name):
                raise went_back(name, start, head, unsure=found is Epoch.UNSURE)
            starts[name] = yield from _resumed(scope, name, start, head)
            back[name] = found
    return starts, back


def news(
    heads: Mapping[str, Head], starts: Mapping[str, ReadPosition]
) -> dict[str, tuple[ReadPosition, ReadPosition]]:
    """Return the start and the end for each stream with new entries."""
    found = {}
    for name, head in heads.items():
        start = starts.get(name, ReadPosition())
        if head.added > start.added:
            found[name] = (start, head.end)
    return found


def went_back(name: str, start: ReadPosition, head: Head, *, unsure: bool = False) -> EpochMismatch:
    """Return the error for a stream that went back in time."""
    why = (
        "; or it was deleted, made again and trimmed while the server was restarted"
        if unsure
        else ""
    )
    return _mismatch(
        f"the stream {name} was read up to {start.id}, its entry {start.added}, and the server now"
        f" counts {head.added} entries up to {head.last}",
        why,
    )


def misfit(name: str, after: str, came: int, rows: int) -> EpochMismatch:
    """Return the error for a stream with more or fewer entries after an id than were added."""
    return _mismatch(
        f"the stream {name} has {rows} entries after {after}, and the server counts {came}"
    )


def _mismatch(said: str, why: str = "") -> EpochMismatch:
    return EpochMismatch(
        f"{said}: it went back in time (restored from a backup, or failed over to a late replica{why})",
        hint="if that is intended: an archive goes on with new_epoch=True, a query of your own with"
        " a new checkpoint",
        shell_hint="if that is intended: an archive goes on with --new-epoch, a query of your own"
        " with a new checkpoint",
    )


def check(scope: Scope, name: str, start: ReadPosition, came: int, rows: int) -> Op[None]:
    """Raise `EpochMismatch` if a stream cannot have `rows` entries of which `came` were added."""
    if rows == came:
        return
    heads = yield from planning.look(scope, [name])
    if not fits(start, came, rows, heads.get(name)):
        raise misfit(name, start.id, came, rows)


def _epochs(
    scope: Scope,
    heads: Mapping[str, Head],
    positions: Mapping[str, ReadPosition],
    counts: Callable[[str], bool],
) -> Op[dict[str, Epoch]]:
    found, changed = {}, []
    for name, head in heads.items():
        start = positions.get(name)
        if start is None:
            continue
        found[name] = epoch(head, start)
        if found[name] is Epoch.SAME and head.last != start.id and holds(head, start):
            changed.append(name)
    missing = yield from _missing(scope, positions, changed)
    # The entry may have been trimmed or deleted since.
    for name, head in (yield from planning.look(scope, missing)).items():
        found[name] = epoch(head, positions[name], there=False)
    rows = {}
    for name in changed:
        if found[name] is Epoch.SAME and counts(name):
            after, until = positions[name].id, heads[name].end.id
            rows[name] = yield from planning.counted(scope, name, after, until)
    for name in (yield from misfits(scope, rows, positions, heads)):
        found[name] = Epoch.BACK
    return found


def misfits(
    scope: Scope,
    rows: Mapping[str, int],
    starts: Mapping[str, ReadPosition],
    heads: Mapping[str, Head],
) -> Op[list[str]]:
    """Return the streams that cannot have as many entries as were counted up to their heads."""
    came = {name: heads[name].added - starts[name].added for name in rows}
    odd = [name for name, number in rows.items() if number != came[name]]
    now = yield from planning.look(scope, odd)
    return [name for name in odd if not fits(starts[name], came[name], rows[name], now.get(name))]


def _missing(
    scope: Scope, positions: Mapping[str, ReadPosition], names: Sequence[str]
) -> Op[list[str]]:
    """Return the streams that lack the entry at their position."""
    ids = {name: positions[name].id for name in names}
    asked = [name for name, at in ids.items() if position(at)[1] != _NO_ENTRY]
    found = []
    for at in range(0, len(asked), _AT_ONCE):
        page = asked[at : at + _AT_ONCE]
        replies = yield Batch(
            [("XRANGE", scope.keys.stream(name), ids[name], ids[name]) for name in page]
        )
        found += [name for name, reply in zip(page, replies, strict=True) if reply == []]
    return found


def _stood(start: ReadPosition) -> Op[bool]:
    """Tell whether the server has run since the position was read, so no stream went back.

    A stream can be in an earlier state only after a restart, or on a replica that was promoted.
    """
    replies = yield Batch([("INFO", "server"), ("INFO", "replication")])
    if any(isinstance(reply, ServerReply) for reply in replies):
        return False
    lines = b"".join(replies).splitlines()
    named = dict(line.split(b":", 1) for line in lines if b":" in line)
    # In a cluster, another node may have replied.
    alone = named.get(b"redis_mode", named.get(b"server_mode")) == b"standalone"
    promoted = named.get(b"master_replid2") != _NEVER_PROMOTED
    if not alone or promoted or named.get(b"role") != b"master":
        return False
    began = int(named[b"server_time_usec"]) // 1000 - int(named[b"uptime_in_seconds"]) * 1000
    return position(start.id)[0] >= began


def _resumed(scope: Scope, name: str, start: ReadPosition, head: Head) -> Op[ReadPosition]:
    """Return the position from which to continue after the server went back."""
    after = start.id if older(start.id, head.last) else head.last
    rest = yield from planning.counted(scope, name, after, head.last)
    return ReadPosition(after, head.added - rest)
