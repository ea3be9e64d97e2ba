"""The versions of an archive as values: commits, and the state that they result in.

A commit lists the data files that it adds and removes, and how far each stream is archived. Commits are
JSON in the archive's `_log`; docs/reference/archive.md describes every field.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import orjson

from agentbus.core.errors import ConfigError, Refused, Unhealthy
from agentbus.core.timespec import parse_rfc3339

T = TypeVar("T")

FORMAT = 1
# Fields that JSON has under another name.
_KEYS = {"from_ms": "from", "to_ms": "to"}
CREATE, APPEND, COMPACT = "create", "append", "compact"
# How long after a commit a state remembers which files it removed, in ms.
REMEMBERED_MS = 86_400_000
# The path of a data file: nothing else that a log names is written, read or deleted.
DATA = re.compile(
    r"kind=(?P<kind>[a-z_]+)/date=(?P<date>\d{4}-\d\d-\d\d)"
    r"/(?P<version>\d{10})-[0-9a-f]{8}-[A-Za-z0-9_.-]+\.parquet",
    re.ASCII,
)


def file_path(kind: str, date: str, version: int, batch: str, part: int | str) -> str:
    """Return the path of a data file that is written for a version; `Place.data` says where."""
    return f"kind={kind}/date={date}/{version:010d}-{batch}-{part}.parquet"


class CommitConflict(Refused):
    """Raised when another writer committed the version first: plan again from the new state."""


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """What a file holds of one stream: how many rows, and its first and last id."""

    rows: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class File:
    """A data file: where it lies, what it holds by stream, from and to when (ms, inclusive).

    `typed` names the typed columns that it holds besides the schema's.
    """

    path: str
    kind: str
    date: str
    rows: int
    bytes: int
    streams: Mapping[str, StreamSpan]
    from_ms: int
    to_ms: int
    typed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream is archived: `id` is the last one, and `rows + lost == base + added`.

    `added` is what the server had ever added to the stream then, `base` what earlier streams of
    that name had; `rows` were archived, `lost` were gone before they could be.
    """

    id: str
    added: int
    base: int
    rows: int
    lost: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of an archive: what changed, who did it and when.

    `batch` is part of the names of its files.
    """

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

    @property
    def at_ms(self) -> int:
        """When it was made, as a unix time in ms."""
        return round((parse_rfc3339(self.at) or 0) * 1000)


@dataclass(frozen=True, slots=True)
class State:
    """The state of an archive at a version: the result of all commits up to it.

    `files` by path, `positions` by stream, `removed`: path → unix time in ms at which a commit of
    the last day removed it, `recent`: version → batch of the last commits.
    """

    version: int
    archive: str
    project: str
    schema: int
    files: Mapping[str, File]
    positions: Mapping[str, Position]
    removed: Mapping[str, int]
    recent: Mapping[int, str]
    # When it was known to be the newest: what a writer may rely on for a while.
    read_at: float = field(default=0.0, compare=False)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


EMPTY = State(0, "", "", 0, {}, {}, {}, {})
_RECENT = 200


def fold(state: State, commits: Iterable[Commit]) -> State:
    """Return what a state becomes by the commits after it, in their order."""
    files, positions = dict(state.files), dict(state.positions)
    removed, recent = dict(state.removed), dict(state.recent)
    version, newest, archive, project = state.version, state.schema, state.archive, state.project
    for commit in commits:
        if commit.version != version + 1:
            raise Unhealthy(f"version {version + 1} of the archive is missing")
        if archive not in ("", commit.archive):
            raise Unhealthy(
                f"version {commit.version} belongs to another archive",
                hint="do not copy one archive's _log into another's",
            )
        # By the time of each commit, so that the result does not depend on the starting state.
        forgotten = commit.at_ms - REMEMBERED_MS
        removed = {path: at for path, at in removed.items() if at > forgotten}
        for path in commit.removed:
            if files.pop(path, None) is None:
                raise Unhealthy(f"version {commit.version} removes {path}, which is not there")
            removed[path] = commit.at_ms
        for file in commit.files:
            if file.path in files:
                raise Unhealthy(f"version {commit.version} adds {file.path} again")
            files[file.path] = file
        positions.update(commit.positions)
        version, archive, project = commit.version, commit.archive, commit.project
        newest = max(newest, commit.schema)
        recent[version] = commit.batch
    return State(
        version,
        archive,
        project,
        newest,
        files,
        positions,
        removed,
        {at: batch for at, batch in recent.items() if at > version - _RECENT},
        state.read_at,
    )


# -- as JSON ------------------------------------------------------------------------------------


def as_json(value: Commit | State) -> bytes:
    """Return a commit or a state as it is written."""
    files = value.files.values() if isinstance(value, State) else value.files
    out = {name: getattr(value, name) for name in value.__slots__ if name != "read_at"}
    out = {"format": FORMAT, **out, "files": [_file_out(file) for file in files]}
    return orjson.dumps(out, option=orjson.OPT_NON_STR_KEYS) + b"\n"


def _file_out(file: File) -> dict[str, Any]:
    out = {_KEYS.get(name, name): getattr(file, name) for name in file.__slots__}
    if not file.typed:
        del out["typed"]
    return out


def from_json(kind: type[T], data: bytes, name: str) -> T:
    """Return the commit or the state that was written; `name` is the file that an error names."""
    try:
        found = orjson.loads(data)
        written = _read(int, found["format"])
        if written <= FORMAT:
            if kind is State:
                found["files"] = {file["path"]: file for file in found["files"]}
            made: T = _read(kind, found)
            if isinstance(made, (Commit, State)):
                _check_paths(made, name)
            return made
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unhealthy(
            f"{name} cannot be read: it is not what AgentBus wrote",
            hint="restore this file from a copy of the archive",
        ) from error
    raise ConfigError(
        f"{name} has the format {written}, and this version of AgentBus knows {FORMAT}",
        hint="pip install --upgrade agentbus-toolkit",
    )


def _check_paths(read: Commit | State, name: str) -> None:
    """Raise `Unhealthy` for a path other than those of data files: it may lead out of the archive."""
    files = read.files.values() if isinstance(read, State) else read.files
    named = {file.path: (file.kind, file.date) for file in files}
    for path in (*named, *read.removed):
        found = DATA.fullmatch(path)
        if found is None or named.get(path, found.group("kind", "date")) != found.group(
            "kind", "date"
        ):
            raise Unhealthy(
                f"{name} names the data file {path[:200]!a}, which AgentBus would not write",
                hint="somebody changed it: restore this file from a copy of the archive",
            )


def _read(kind: Any, found: Any) -> Any:
    """Return a value of a type, as the classes above annotate it, from what JSON holds.

    Raises `TypeError` for a value of another type; a bool is not a number.
    """
    if type(found) is kind:
        return found
    outer, inner = get_origin(kind), get_args(kind)
    if outer is tuple:
        return tuple(_read(inner[0], each) for each in found)
    if outer is Mapping:
        return {inner[0](name): _read(inner[1], each) for name, each in found.items()}
    if kind in (int, str):
        raise TypeError
    return kind(
        **{name: _read(type, found[key]) for name, key, type in _parts(kind) if key in found}
    )


@functools.cache
def _parts(kind: Any) -> list[tuple[str, str, Any]]:
    """Return a class's fields, each with its name in JSON and its type."""
    types = get_type_hints(kind)
    # What is not compared is not written.
    return [
        (each.name, _KEYS.get(each.name, each.name), types[each.name])
        for each in fields(kind)
        if each.compare
    ]
