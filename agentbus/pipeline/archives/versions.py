"""The versions of an archive as values: commits, and the states that result from them.

A commit lists the data files that it adds and removes, and the position of each stream. Commits are
JSON in the archive's `_log`; docs/reference/archive.md describes every field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from agentbus.core.errors import Refused, Unhealthy
from agentbus.core.timespec import parse_rfc3339

# Format of the log; a reader refuses a newer format.
FORMAT = 1
CREATE, APPEND, COMPACT = "create", "append", "compact"
# Milliseconds for which a state lists the files that a commit removed.
REMEMBERED_MS = 86_400_000
# The form of a data file's path: no other path that a log names is written, read or deleted.
_FOLDER = r"kind=(?P<kind>[a-z_]+)/date=(?P<date>\d{4}-\d\d-\d\d)"
_NAME = r"(?P<version>\d{10})-[0-9a-f]{8}-[A-Za-z0-9_.-]+\.parquet"
DATA = re.compile(f"{_FOLDER}/{_NAME}", re.ASCII)


def file_path(kind: str, date: str, version: int, batch: str, part: int | str) -> str:
    """Return the path of a version's data file within `Place.data`."""
    return f"kind={kind}/date={date}/{version:010d}-{batch}-{part}.parquet"


class CommitConflict(Refused):
    """Another writer committed the version first; plan again from the new state."""


class StreamSpan(msgspec.Struct, frozen=True, gc=False):
    """The part of a file that belongs to one stream: number of rows, first and last id."""

    rows: int
    first: str
    last: str


class File(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A data file: its path, its content by stream, and its time range (ms, inclusive).

    `typed` names its typed columns besides those of the schema.
    """

    path: str
    kind: str
    date: str
    rows: int
    bytes: int
    streams: Mapping[str, StreamSpan]
    from_ms: int = msgspec.field(name="from")
    to_ms: int = msgspec.field(name="to")
    typed: tuple[str, ...] = ()


class Position(msgspec.Struct, frozen=True):
    """The position up to which a stream is archived: `id` is the last, and `rows + lost == base + added`.

    `added` is the number of entries that the server had ever added to the stream, `base` that of
    earlier streams with the same name; `rows` entries were archived, `lost` entries were gone
    before.
    """

    id: str
    added: int
    base: int
    rows: int
    lost: int


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of an archive: the changes, their author and their time.

    `batch` is part of the names of its files. `columns` are the table's columns with their types,
    if they changed.
    """

    format: int
    version: int
    batch: str
    operation: str
    at: str
    by: str
    archive: str
    project: str
    schema: int
    files: tuple[File, ...]
    removed: tuple[str, ...]
    positions: Mapping[str, Position]
    columns: Mapping[str, str] = {}

    @property
    def at_ms(self) -> int:
        """The time of the commit, as a unix time in ms."""
        return round((parse_rfc3339(self.at) or 0) * 1000)


@dataclass(frozen=True, slots=True)
class State:
    """The state of an archive at a version: the result of all commits up to it.

    `format` is the newest of its commits. `files` by path, `positions` by stream, `removed`: path →
    unix time in ms at which a commit of the last day removed it, `recent`: version → batch of the last
    commits, `columns` of the table with their types.
    """

    format: int
    version: int
    archive: str
    project: str
    schema: int
    files: Mapping[str, File]
    positions: Mapping[str, Position]
    removed: Mapping[str, int]
    recent: Mapping[int, str]
    columns: Mapping[str, str]
    # The time when this state was known to be the newest; a writer may rely on that for a while.
    read_at: float = field(default=0.0, compare=False)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


EMPTY = State(0, 0, "", "", 0, {}, {}, {}, {}, {})
_RECENT = 200


def fold(state: State, commits: Iterable[Commit]) -> State:
    """Return the state that results from a state and the following commits, in order."""
    files, positions = dict(state.files), dict(state.positions)
    removed, recent = dict(state.removed), dict(state.recent)
    version, newest, archive, project = state.version, state.schema, state.archive, state.project
    format, columns = state.format, state.columns
    oldest = min(removed.values(), default=0)
    for commit in commits:
        at_ms = commit.at_ms
        if commit.version != version + 1:
            raise Unhealthy(f"version {version + 1} of the archive is missing")
        if archive not in ("", commit.archive):
            raise Unhealthy(
                f"version {commit.version} belongs to another archive",
                hint="do not copy one archive's _log into another's",
            )
        # Use the times of commits, so that the result does not depend on the starting state.
        forgotten = at_ms - REMEMBERED_MS
        if removed and oldest <= forgotten:
            removed = {path: at for path, at in removed.items() if at > forgotten}
            oldest = min(removed.values(), default=0)
        for path in commit.removed:
            if files.pop(path, None) is None:
                raise Unhealthy(f"version {commit.version} removes {path}, which is not there")
            oldest = min(oldest, at_ms) if removed else at_ms
            removed[path] = at_ms
        for file in commit.files:
            if file.path in files:
                raise Unhealthy(f"version {commit.version} adds {file.path} again")
            files[file.path] = file
        positions.update(commit.positions)
        version, archive, project = commit.version, commit.archive, commit.project
        newest, format = max(newest, commit.schema), max(format, commit.format)
        columns = commit.columns or columns
        recent[version] = commit.batch
    return State(
        format,
        version,
        archive,
        project,
        newest,
        files,
        positions,
        removed,
        {at: batch for at, batch in recent.items() if at > version - _RECENT},
        columns,
        state.read_at,
    )
