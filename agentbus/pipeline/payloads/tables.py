"""Keeps a Delta table for each typed task and event type, with the members of payloads as columns.

A table follows the versions of an archive: what they added is added, and a day from which they deleted rows
is written again. Both are one commit, whose transaction is the archive's version, so that a table is at
each moment exactly what one version of the archive holds, wherever a process was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from agentbus.core.errors import NotFound, UsageError
from agentbus.pipeline.archives.changes import changes
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.directory import told
from agentbus.pipeline.archives.file_selection import check_schema
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.versions import (
    ArchiveSnapshot,
    CommitConflict,
    DataFile,
    file_path,
    new_batch,
)
from agentbus.pipeline.payloads.members import OWN, PARTITIONS, columns_of, values
from agentbus.pipeline.replays.reading import ArchiveFile
from agentbus.pipeline.rows.schema import EVENT, QUEUE

Schemas = Mapping[tuple[str, str], Mapping[str, Any]]

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_DATE = re.compile(r"kind=([a-z_]+)/date=([0-9-]+)/")
_READ = (
    "stream",
    "id",
    "time",
    "agent",
    "topic",
    "event",
    "queue",
    "correlation_id",
    *("payload", "fields"),
)
# Rows of a file, and the least number of versions without any row after which a table is committed to.
_ROWS, _BEHIND = 50_000, 50


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table of payloads: what it is of, where it lies, and what was added and written again.

    `version` is that of the archive whose rows it has.
    """

    kind: str
    source: str
    name: str
    path: str
    version: int
    rows: int
    added: int
    rewritten: int


@dataclass(slots=True)
class _Follower:
    """A table of payloads, and what it lacks: files to add, and days to write again."""

    kind: str
    source: str
    name: str
    table: ArchiveTable
    base: ArchiveSnapshot
    types: Mapping[str, pa.DataType]
    before: int
    batch: str = field(default_factory=new_batch)
    days: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    written: list[DataFile] = field(default_factory=list)
    waiting: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def wants(self, file: DataFile) -> bool:
        """Tell whether the rows of a file of the archive are to be read."""
        return file.kind == self.kind and (file.path in self.paths or file.date in self.days)

    def add(self, date: str, row: Mapping[str, Any]) -> None:
        """Add a row of the archive."""
        own = {name: row[name.removeprefix("_")] for name in OWN}
        rows = self.waiting.setdefault(date, [])
        rows.append(own | values(row["payload"], self.types))
        if len(rows) >= _ROWS:
            self.write(date)

    def write(self, date: str) -> None:
        """Write the rows of a day that wait into a file."""
        rows = self.waiting.pop(date)
        path = file_path(self.kind, date, self.batch, len(self.written))
        stored = [(name, kind) for name, kind in self.types.items() if name not in PARTITIONS]
        system, root = self.table.place.target.filesystem()
        self.table.place.make_folder(path)
        with told("write", f"{root}/{path}"):
            table = pa.Table.from_pylist(rows, schema=pa.schema(stored))
            pq.write_table(table, f"{root}/{path}", filesystem=system, compression="zstd")
        size = self.table.place.sizes([path])[0] or 0
        self.written.append(DataFile(path, self.kind, date, len(rows), size, 0, -1))

    def commit(self, app: str, version: int) -> int:
        """Commit what was written, and return the number of files that were replaced."""
        replaced = [path for path, file in self.base.files.items() if file.date in self.days]
        if self.written or replaced or version - self.before >= _BEHIND or self.before < 0:
            transaction = app, self.before, version
            self.base = self.table.follow(
                self.base, self.batch, self.written, replaced, transaction
            )
            self.before = version
        return len(replaced)


def follow(
    path: Location,
    *,
    tasks: Schemas | None = None,
    events: Schemas | None = None,
    to: str | None = None,
    now: bool = False,
) -> list[FollowedTable]:
    """Update the tables of typed tasks and event types to the newest version of an archive.

    `tasks` maps queues and tasks, and `events` streams and event types, to JSON Schemas, as `Tasks.schemas`
    and `EventSchemas.schemas` return them. The tables lie in `to`, by default beside the archive. With
    `now`, files that only older versions of the tables have are deleted. Needs no Spark.
    """
    raw = ArchiveTable(place(path))
    state = raw.snapshot()
    check_schema(raw.place, state)
    root = to or f"{raw.place}-tables"
    options = dict(raw.place.target.options)
    app = f"agentbus.{state.archive}"
    followers = [
        _opened(root, options, kind, source, name, schema, state, app)
        for kind, given in ((QUEUE, tasks), (EVENT, events))
        for (source, name), schema in sorted((given or {}).items())
    ]
    if not followers:
        raise UsageError("no tables were asked for", hint="give tasks, or events with schemas")
    changed: dict[int, tuple[set[str], set[tuple[str, str]]]] = {}
    for each in followers:
        if each.before not in changed:
            changed[each.before] = _since(raw, state, each.before)
        added, days = changed[each.before]
        each.days = {date for kind, date in days if kind == each.kind}
        each.paths = added
    _copy(raw, state, followers)
    return [_finished(each, app, state.version, now=now) for each in followers]


def _opened(
    root: str,
    options: Mapping[str, str],
    kind: str,
    source: str,
    name: str,
    schema: Mapping[str, Any],
    state: ArchiveSnapshot,
    app: str,
) -> _Follower:
    folder = "tasks" if kind == QUEUE else "events"
    table = ArchiveTable(place(f"{root}/{folder}/{_plain(source)}/{_plain(name)}", options))
    base = table.create(state.project, pa.schema(columns_of(schema).items()))
    # A column keeps the type that it was made with.
    return _Follower(kind, source, name, table, base, table.types(), table.followed(app))


def _plain(name: str) -> str:
    """Return a name as a directory's, distinct for distinct names."""
    if _PLAIN.fullmatch(name):
        return name
    short = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]
    return f"{short}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _since(
    raw: ArchiveTable, state: ArchiveSnapshot, before: int
) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the files that were added since a version, and the days from which rows were deleted.

    Where the log does not have all versions since, these are all days.
    """
    added: set[str] = set()
    days: set[tuple[str, str]] = set()
    try:
        for version in range(before + 1, state.version + 1) if before >= 0 else ():
            change = changes(raw, version)
            added.update(file.path for file in change.added)
            days.update(_day(path) for path in change.deleted)
    except NotFound:
        before = -1
    if before < 0:
        days = {(file.kind, file.date) for file in state.files.values()}
    # Rows of a file that was replaced meanwhile are in other files of its day.
    days.update(_day(path) for path in added - {*state.files})
    return added & {*state.files}, days


def _day(path: str) -> tuple[str, str]:
    day = _DATE.match(path)
    return (day[1], day[2]) if day else ("", "")


def _copy(raw: ArchiveTable, state: ArchiveSnapshot, followers: Sequence[_Follower]) -> None:
    """Copy the rows that the tables lack, reading each file of the archive once."""
    for file in state.files.values():
        wanted = {(each.source, each.name): each for each in followers if each.wants(file)}
        for place_, row in _rows(raw, file) if wanted else ():
            if (follower := wanted.get(place_)) is not None:
                follower.add(file.date, row)
    for each in followers:
        for date in [*each.waiting]:
            each.write(date)


def _rows(raw: ArchiveTable, file: DataFile) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield the rows of tasks and events, each with its queue and task, or its stream and type."""
    with contextlib.closing(ArchiveFile(raw.place.target, file.path)) as opened:
        for batch in opened.read(_READ, range(opened.groups)):
            for row in batch.to_pylist():
                if file.kind == EVENT:
                    yield (row["topic"] or "", row["event"] or ""), row
                elif (task := _task(row["fields"])) is not None:
                    yield (row["queue"] or "", task), row


def _task(fields: Iterable[tuple[str, str]]) -> str | None:
    """Return the name of a typed task, which its envelope holds."""
    meta = dict(fields).get("meta")
    if meta is None or '"task"' not in meta:
        return None
    try:
        task = orjson.loads(meta).get("task")
    except (ValueError, AttributeError):
        return None
    return task if isinstance(task, str) else None


def _finished(each: _Follower, app: str, version: int, *, now: bool) -> FollowedTable:
    added = sum(file.rows for file in each.written)
    rewritten = 0
    try:
        rewritten = each.commit(app, version)
    except CommitConflict:
        # Another process was first, with the same rows.
        for file in each.written:
            each.table.place.delete(file.path)
        added = 0
    if now:
        each.table.sweep(0)
    else:
        each.table.settle()
    state = each.table.snapshot()
    return FollowedTable(
        *(each.kind, each.source, each.name, str(each.table.place)),
        *(each.table.followed(app), state.rows, added, rewritten),
    )
