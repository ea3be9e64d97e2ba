"""The versions of an archive as values: commits, and the state that they result in.

A commit lists the data files that it adds and removes, and how far each stream is archived. Commits are
JSON in the archive's `_log`; docs/reference/archive.md describes every field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

import orjson

from agentbus.core.errors import ConfigError, Refused, Unhealthy
from agentbus.core.timespec import parse_rfc3339

T = TypeVar("T")

FORMAT = 1
_TYPES = {"int": int, "str": str}
CREATE, APPEND, COMPACT = "create", "append", "compact"
# How long after a commit a state remembers which files it removed, in ms.
REMEMBERED_MS = 86_400_000


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
class ArchiveChange:
    """The contents of a commit to be made; `batch` is part of the names of its files."""

    operation: str
    batch: str
    files: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of an archive: what changed, who did it and when."""

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


def read_commit(data: bytes, name: str) -> Commit:
    """Read a commit; `name` is the file that an error names."""

    def made(found: dict[str, Any]) -> Commit:
        return _in(
            Commit,
            found,
            files=tuple(_file_in(file) for file in found["files"]),
            removed=tuple(_as(str, path) for path in found["removed"]),
            positions=_all_in(Position, found["positions"]),
        )

    return _checked(data, name, made)


def read_state(data: bytes, name: str) -> State:
    """Read a state; `name` is the file that an error names."""

    def made(found: dict[str, Any]) -> State:
        files = (_file_in(file) for file in found["files"])
        return _in(
            State,
            found,
            files={file.path: file for file in files},
            positions=_all_in(Position, found["positions"]),
            removed={path: _as(int, at) for path, at in found["removed"].items()},
            recent={int(version): _as(str, batch) for version, batch in found["recent"].items()},
        )

    return _checked(data, name, made)


def _checked(data: bytes, name: str, make: Callable[[dict[str, Any]], T]) -> T:
    try:
        found = orjson.loads(data)
        written = _as(int, found["format"])
    except (ValueError, TypeError, KeyError) as error:
        raise _broken(name) from error
    if written > FORMAT:
        raise ConfigError(
            f"{name} has the format {written}, and this version of AgentBus knows {FORMAT}",
            hint="pip install --upgrade agentbus-toolkit",
        )
    try:
        return make(found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _broken(name) from error


def _broken(name: str) -> Unhealthy:
    return Unhealthy(
        f"{name} cannot be read: it is not what AgentBus wrote",
        hint="restore this file from a copy of the archive",
    )


def _file_out(file: File) -> dict[str, Any]:
    names = {"from_ms": "from", "to_ms": "to"}
    out = {names.get(name, name): getattr(file, name) for name in file.__slots__}
    if not file.typed:
        del out["typed"]
    return out


def _file_in(found: dict[str, Any]) -> File:
    return _in(
        File,
        found,
        streams=_all_in(StreamSpan, found["streams"]),
        from_ms=_as(int, found["from"]),
        to_ms=_as(int, found["to"]),
        typed=tuple(_as(str, column) for column in found.get("typed", ())),
    )


def _all_in(kind: type[T], found: dict[str, Any]) -> dict[str, T]:
    return {stream: _in(kind, each) for stream, each in found.items()}


def _in(kind: type[T], found: dict[str, Any], **parts: Any) -> T:
    """Return a value of a class above: `parts`, and its other fields, texts and numbers, by their names."""
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in parts and each.default is MISSING:
            parts[each.name] = _as(_TYPES[each.type], found[each.name])  # type: ignore[index]
    return kind(**parts)


def _as(kind: type[T], value: object) -> T:
    """Return a value of a type. Raises `TypeError` for another one; a bool is not a number."""
    if type(value) is not kind:
        raise TypeError
    return value
