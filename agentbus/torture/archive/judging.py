"""What must be true of an archive and of its replay, by what was acknowledged: pure checks."""

from __future__ import annotations

import collections
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agentbus.core.stream import position
from agentbus.torture.archive.writing import CHANNEL, HELD, WRITE, text_of, token
from agentbus.torture.history import INVOKE, OK, Entry

# A stream, and the id of an entry in it.
Name = tuple[str, str]


class Row(NamedTuple):
    """An entry, as an archive or a server holds it: its fields as canonical JSON, and its token if any."""

    name: Name
    kind: str
    fields: str
    token: str | None


class Hole(NamedTuple):
    """Entries of a stream that the archive says were gone, after one id and up to another."""

    stream: str
    lost: int
    after: str
    until: str


class Counted(NamedTuple):
    """What an archive's log says of a stream."""

    rows: int
    lost: int


class Published(NamedTuple):
    """An entry that a replay published, with where it says that it is from."""

    origin: Name
    token: str | None
    sound: bool


class Story(NamedTuple):
    """All that is known at the end of a run.

    `log` is None for an archive that has none. `server` are the entries that are still there, `to_replay`
    those that the replay was asked for. `disagreed` is what `archive verify` found wrong.
    """

    entries: Sequence[Entry]
    rows: Sequence[Row]
    holes: Sequence[Hole] = ()
    log: Mapping[str, Counted] | None = None
    server: Sequence[Row] = ()
    replayed: Sequence[Published] | None = None
    disagreed: Sequence[str] = ()
    unshown: Collection[str] = ()
    ended: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    went_on: Sequence[str] = ()


def acknowledged(entries: Iterable[Entry]) -> dict[Name, str]:
    """Return the token of each entry whose id its writer was told."""
    found = {}
    for entry in entries:
        if (entry.op, entry.phase) == (WRITE, OK):
            for name, mark in zip(entry.of["ids"], _tokens(entry), strict=True):
                stream, _, entry_id = name.rpartition(" ")
                found[stream, entry_id] = mark
    return found


def asked(entries: Iterable[Entry]) -> set[str]:
    """Return the tokens of all that anybody ever asked to be written."""
    return {
        mark
        for entry in entries
        if (entry.op, entry.phase) == (WRITE, INVOKE)
        for mark in _tokens(entry)
    }


def _tokens(entry: Entry) -> list[str]:
    of = entry.of
    return [token(entry.who, of["life"], of["first"] + n) for n in range(of["number"])]


def sound(stream: str, fields: Mapping[str, str], mark: str) -> bool:
    """Tell whether an entry holds what was written with its token."""
    if stream == CHANNEL:
        return fields.get("message") == f"{mark} {text_of(mark)}"
    try:
        return bool(json.loads(fields.get("payload", "")) == {"n": mark, "text": text_of(mark)})
    except ValueError:
        return False


def mark_of(stream: str, fields: Mapping[str, str]) -> str | None:
    """Return the token of an entry of the writers, None of any other."""
    if stream == CHANNEL:
        said = fields.get("message", "")
        return said.partition(" ")[0] if fields.get("topic") == "torture" else None
    if not stream.startswith("q:"):
        return None
    try:
        found = json.loads(fields.get("payload", ""))
    except ValueError:
        return None
    return found.get("n") if isinstance(found, dict) else None


# -- checks --


def lost(story: Story) -> list[str]:
    """Entries that were acknowledged, or are still on the server, and are neither archived nor counted."""
    there = {row.name for row in story.rows}
    missing = acknowledged(story.entries).keys() - there
    holes = collections.defaultdict(list)
    for hole in story.holes:
        holes[hole.stream].append((position(hole.after), position(hole.until), hole.lost))
    wrong, counted = [], collections.Counter[tuple[str, int]]()
    for stream, entry_id in sorted(missing):
        at = position(entry_id)
        for n, (after, until, _) in enumerate(holes[stream]):
            if after < at <= until:
                counted[stream, n] += 1
                break
        else:
            wrong.append(f"{stream} {entry_id}")
    for (stream, n), number in sorted(counted.items()):
        if number > holes[stream][n][2]:
            wrong.append(f"{stream}: {number} are gone, and {holes[stream][n][2]} were counted")
    return wrong + [_said(row.name) for row in story.server if row.name not in there]


def lost_though_held(story: Story) -> list[Hole]:
    """Gaps in a stream that was held for the archive."""
    return [hole for hole in story.holes if hole.stream == HELD]


def doubled(story: Story) -> list[str]:
    """Entries that are archived more than once, or under two ids though they were written once."""
    names = collections.Counter(row.name for row in story.rows)
    marks = collections.Counter(row.token for row in story.rows if row.token is not None)
    return [_said(name) for name, number in names.items() if number > 1] + [
        mark for mark, number in marks.items() if number > 1
    ]


def invented(story: Story) -> list[str]:
    """Archived entries that nobody ever asked to be written, and that the server does not know either."""
    known = asked(story.entries)
    there = {row.name for row in story.server}
    return [
        _said(row.name)
        for row in story.rows
        if (row.token not in known if row.token is not None else row.name not in there)
        if story.server or row.token is not None
    ]


def changed(story: Story) -> list[str]:
    """Archived entries that hold something else than was written, or than the server holds."""
    told = acknowledged(story.entries)
    there = {row.name: row.fields for row in story.server}
    return [
        _said(row.name)
        for row in story.rows
        if told.get(row.name, row.token) != row.token
        or there.get(row.name, row.fields) != row.fields
        or (row.token is not None and not sound(row.name[0], json.loads(row.fields), row.token))
    ]


def miscounted(story: Story) -> list[str]:
    """Streams of which the archive's log says other figures than its files."""
    if story.log is None:
        return []
    rows = collections.Counter(row.name[0] for row in story.rows)
    gone = collections.Counter[str]()
    for hole in story.holes:
        gone[hole.stream] += hole.lost
    return [
        f"{stream}: {rows[stream]} rows and {gone[stream]} lost, and the log says {said}"
        for stream in sorted(rows.keys() | gone.keys() | story.log.keys())
        if (said := story.log.get(stream, Counted(0, 0))) != (rows[stream], gone[stream])
    ]


def verify_disagrees(story: Story) -> list[str]:
    """What `archive verify` says is wrong."""
    return list(story.disagreed)


def shown_wrongly(story: Story) -> list[str]:
    """Files that plain readers see and the log does not name, or the other way round."""
    return sorted(story.unshown)


def _replayable(story: Story) -> list[Row]:
    return [row for row in story.rows if row.kind == "queue"]


def replayed_twice(story: Story) -> list[str]:
    """Entries that the replay published more than once."""
    found = collections.Counter(each.origin for each in story.replayed or ())
    return [_said(name) for name, number in found.items() if number > 1]


def replay_lost(story: Story) -> list[str]:
    """Entries that were to be replayed and are not there."""
    if story.replayed is None:
        return []
    there = {each.origin for each in story.replayed}
    return [_said(row.name) for row in _replayable(story) if row.name not in there]


def replay_invented(story: Story) -> list[str]:
    """Entries that were replayed from nowhere, or hold something else than what they are from."""
    known = {row.name: row.token for row in _replayable(story)}
    return [
        _said(each.origin)
        for each in story.replayed or ()
        if not each.sound or known.get(each.origin, "") != each.token
    ]


def replay_out_of_order(story: Story) -> list[str]:
    """Entries that were replayed after a later one of their stream."""
    latest: dict[str, tuple[int, int]] = {}
    wrong = []
    for each in story.replayed or ():
        stream, at = each.origin[0], position(each.origin[1])
        if at < latest.get(stream, at):
            wrong.append(_said(each.origin))
        latest[stream] = max(at, latest.get(stream, at))
    return wrong


def went_on_after_a_restore(story: Story) -> list[str]:
    """What was done otherwise than promised where the server had gone back in time."""
    return list(story.went_on)


def ended_by_themselves(story: Story) -> list[str]:
    """Processes that gave up: trouble of the server's is no reason to."""
    return list(story.ended)


def unfinished(story: Story) -> list[str]:
    """What did not come to its end in time."""
    return list(story.unfinished)


CHECKS = (
    *(lost, lost_though_held, doubled, invented, changed, miscounted, verify_disagrees),
    *(shown_wrongly, replayed_twice, replay_lost, replay_invented, replay_out_of_order),
    *(went_on_after_a_restore, ended_by_themselves, unfinished),
)


def canonical(fields: Mapping[str, Any]) -> str:
    """Return fields in one form, so that equal ones are equal."""
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def _said(name: Name) -> str:
    return " ".join(name)
