"""Checks of an archive and of its replay, by what was acknowledged: each returns what is wrong."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agentbus.core.stream import position
from tests.torture.archive.writing import CHANNEL, HELD, WRITE, text_of, token
from tests.torture.history import INVOKE, OK, HistoryEntry

# A stream, and the id of an entry in it.
Name = tuple[str, str]


class ArchivedRow(NamedTuple):
    """An entry in an archive or on a server: its fields as canonical JSON, and its token, if any."""

    name: Name
    fields: str
    token: str | None


class Hole(NamedTuple):
    """Entries of a stream that the archive counts as lost, after one id and up to another."""

    stream: str
    lost: int
    after: str
    until: str


class ReplayedEntry(NamedTuple):
    """An entry that a replay published, with its stated origin."""

    origin: Name
    token: str | None
    sound: bool


class ArchiveEvidence(NamedTuple):
    """What is known at the end of a run.

    `log` says how many rows and how many lost entries each stream has; it is None for an archive without
    one. `server` are the entries that are still there, `replayed` those that a replay published.
    """

    entries: Sequence[HistoryEntry]
    rows: Sequence[ArchivedRow]
    holes: Sequence[Hole] = ()
    log: Mapping[str, tuple[int, int]] | None = None
    server: Sequence[ArchivedRow] = ()
    replayed: Sequence[ReplayedEntry] | None = None


def acknowledged(entries: Iterable[HistoryEntry]) -> dict[Name, str]:
    """Return the token of each acknowledged entry."""
    found = {}
    for entry in entries:
        if (entry.op, entry.phase) == (WRITE, OK):
            for name, mark in zip(entry.of["ids"], _tokens(entry), strict=True):
                stream, _, entry_id = name.rpartition(" ")
                found[stream, entry_id] = mark
    return found


def asked(entries: Iterable[HistoryEntry]) -> set[str]:
    """Return the tokens of all entries that a writer has invoked."""
    return {
        mark
        for entry in entries
        if (entry.op, entry.phase) == (WRITE, INVOKE)
        for mark in _tokens(entry)
    }


def _tokens(entry: HistoryEntry) -> list[str]:
    of = entry.of
    return [token(entry.who, of["life"], of["first"] + n) for n in range(of["number"])]


def sound(stream: str, fields: Mapping[str, str], mark: str) -> bool:
    """Tell whether an entry has the text of its token."""
    if stream == CHANNEL:
        return fields.get("message") == f"{mark} {text_of(mark)}"
    try:
        return bool(json.loads(fields.get("payload", "")) == {"n": mark, "text": text_of(mark)})
    except ValueError:
        return False


def mark_of(stream: str, fields: Mapping[str, str]) -> str | None:
    """Return the token of a writer's entry, None for other entries."""
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


def lost(evidence: ArchiveEvidence) -> list[str]:
    """Entries, acknowledged or on the server, that are neither archived nor counted as lost."""
    there = {row.name for row in evidence.rows}
    missing = acknowledged(evidence.entries).keys() - there
    holes = collections.defaultdict(list)
    for hole in evidence.holes:
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
    return wrong + [_said(row.name) for row in evidence.server if row.name not in there]


def falsely_lost(evidence: ArchiveEvidence) -> list[str]:
    """Queues that count more entries as lost than there can have been that are not archived."""
    there = {row.name for row in evidence.rows}
    told = acknowledged(evidence.entries)
    missing = collections.Counter(stream for stream, _ in told.keys() - there)
    # An entry that nobody acknowledged may be in any stream.
    unsure = len(asked(evidence.entries) - set(told.values()))
    counted = collections.Counter[str]()
    for hole in evidence.holes:
        counted[hole.stream] += hole.lost
    return [
        f"{stream}: {number} counted, {missing[stream]} not archived"
        for stream, number in counted.items()
        # Others have entries that no writer knows of.
        if stream.startswith("q:") and number > missing[stream] + unsure
    ]


def lost_though_held(evidence: ArchiveEvidence) -> list[Hole]:
    """Gaps in a stream that was held for the archive."""
    return [hole for hole in evidence.holes if hole.stream == HELD]


def doubled(evidence: ArchiveEvidence) -> list[str]:
    """Entries that are archived more than once, or under two ids."""
    names = collections.Counter(row.name for row in evidence.rows)
    marks = collections.Counter(row.token for row in evidence.rows if row.token is not None)
    return [_said(name) for name, number in names.items() if number > 1] + [
        mark for mark, number in marks.items() if number > 1
    ]


def invented(evidence: ArchiveEvidence) -> list[str]:
    """Archived entries that were never written, and that the server does not have."""
    known = asked(evidence.entries)
    there = {row.name for row in evidence.server}
    return [
        _said(row.name)
        for row in evidence.rows
        if (row.token not in known if row.token is not None else row.name not in there)
        if evidence.server or row.token is not None
    ]


def changed(evidence: ArchiveEvidence) -> list[str]:
    """Archived entries that differ from what was written, or from the server's."""
    told = acknowledged(evidence.entries)
    there = {row.name: row.fields for row in evidence.server}
    return [
        _said(row.name)
        for row in evidence.rows
        if told.get(row.name, row.token) != row.token
        or there.get(row.name, row.fields) != row.fields
        or (row.token is not None and not sound(row.name[0], json.loads(row.fields), row.token))
    ]


def miscounted(evidence: ArchiveEvidence) -> list[str]:
    """Streams for which the archive's log has other figures than its files."""
    if evidence.log is None:
        return []
    rows = collections.Counter(row.name[0] for row in evidence.rows)
    gone = collections.Counter[str]()
    for hole in evidence.holes:
        gone[hole.stream] += hole.lost
    return [
        f"{stream}: {rows[stream]} rows and {gone[stream]} lost, and the log says {said}"
        for stream in sorted(rows.keys() | gone.keys() | evidence.log.keys())
        if (said := evidence.log.get(stream, (0, 0))) != (rows[stream], gone[stream])
    ]


def replayable(evidence: ArchiveEvidence) -> list[ArchivedRow]:
    """Return the archived tasks."""
    return [row for row in evidence.rows if row.name[0].startswith("q:")]


def replayed_twice(evidence: ArchiveEvidence) -> list[str]:
    """Entries that the replay published more than once."""
    found = collections.Counter(each.origin for each in evidence.replayed or ())
    return [_said(name) for name, number in found.items() if number > 1]


def replay_lost(evidence: ArchiveEvidence) -> list[str]:
    """Entries that the replay left out."""
    if evidence.replayed is None:
        return []
    there = {each.origin for each in evidence.replayed}
    return [_said(row.name) for row in replayable(evidence) if row.name not in there]


def replay_invented(evidence: ArchiveEvidence) -> list[str]:
    """Replayed entries without an origin, or that differ from it."""
    known = {row.name: row.token for row in replayable(evidence)}
    return [
        _said(each.origin)
        for each in evidence.replayed or ()
        if not each.sound or known.get(each.origin, "") != each.token
    ]


def replay_out_of_order(evidence: ArchiveEvidence) -> list[str]:
    """Entries that were replayed after a later one of their stream."""
    latest: dict[str, tuple[int, int]] = {}
    wrong = []
    for each in evidence.replayed or ():
        stream, at = each.origin[0], position(each.origin[1])
        if at < latest.get(stream, at):
            wrong.append(_said(each.origin))
        latest[stream] = max(at, latest.get(stream, at))
    return wrong


CHECKS = (
    *(lost, falsely_lost, lost_though_held, doubled, invented, changed, miscounted),
    *(replayed_twice, replay_lost, replay_invented, replay_out_of_order),
)


def canonical(fields: Mapping[str, Any]) -> str:
    """Return fields in one form, so that equal ones are equal."""
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def _said(name: Name) -> str:
    return " ".join(name)
