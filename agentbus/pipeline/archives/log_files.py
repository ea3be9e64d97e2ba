"""The files of an archive's log: their names, their formats, and their contents."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agentbus.core.errors import ConfigError, Unhealthy
from agentbus.pipeline.archives.versions import (
    DATA,
    FORMAT,
    Commit,
    File,
    Position,
    State,
)

T = TypeVar("T")

LOG = "_log"
COMMIT = re.compile(rf"{LOG}/(\d{{20}})\.json")
STATE = re.compile(rf"{LOG}/(\d{{20}})\.state\.json\.zst")
# This file names the newest state, so that readers need not list the log.
LAST_STATE = f"{LOG}/last_state"
# Minimum number of commits between two states, and the files of an archive per commit beyond which
# states are written less often.
_EVERY, _FILES = 100, 200
# With at least this many files, their paths are checked together.
_MANY = 1000
# Number of bytes that are decompressed at once.
_PIECE = 1 << 20
# A file is unpacked to at most 64 MiB, or a hundred times its size, whichever is more. Packed logs of real
# archives have a tenth of their size.
_UNPACKED, _TIMES = 64 << 20, 100
# One state in this many is kept for reading old versions.
_LANDMARK = 10


class _Written(msgspec.Struct, frozen=True):
    """A state as JSON, with its files as a list."""

    format: int
    version: int
    archive: str
    project: str
    schema: int
    files: list[File]
    positions: dict[str, Position]
    removed: dict[str, int]
    recent: dict[int, str]
    columns: dict[str, str]


class _Format(msgspec.Struct):
    format: int


_COMMITS = msgspec.json.Decoder(Commit)
_STATES = msgspec.json.Decoder(_Written)


def commit_name(version: int) -> str:
    """Return the name of a version's file."""
    return f"{LOG}/{version:020d}.json"


def state_name(state: State) -> str:
    """Return the name of a state's file."""
    return f"{LOG}/{state.version:020d}.state.json.zst"


def interval(state: State) -> int:
    """Return the number of versions between two written states, larger for a large archive."""
    every = _EVERY
    while every * _FILES < len(state.files):
        every *= 2
    return every


def landmarks(state: State) -> int:
    """Return the number whose multiples are the versions with states kept for reading."""
    return _LANDMARK * interval(state)


def commit_bytes(commit: Commit) -> bytes:
    """Return a commit in its file format."""
    return msgspec.json.encode(commit) + b"\n"


def state_bytes(state: State) -> bytes:
    """Return a state in its file format."""
    held = {name: getattr(state, name) for name in _Written.__struct_fields__}
    written = _Written(**held | {"files": list(state.files.values())})
    data = msgspec.json.encode(written) + b"\n"
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def read_commit(data: bytes, name: str) -> Commit:
    """Return the commit in a file; errors refer to the file by `name`."""
    commit = _decoded(_COMMITS, data, name)
    _check_paths(commit.files, commit.removed, name)
    return commit


def read_state(data: bytes, name: str) -> State:
    """Return the state in a file; errors refer to the file by `name`."""
    data = unpacked(data, name)
    written = _decoded(_STATES, data, name)
    _check_paths(written.files, written.removed, name)
    held = {field: getattr(written, field) for field in written.__struct_fields__}
    return State(**held | {"files": {file.path: file for file in written.files}})


def unpacked(data: bytes, name: str) -> bytes:
    """Return what a file holds unpacked. Raises `Unhealthy` if it cannot be, or is far larger than it."""
    most, size, pieces = max(_UNPACKED, _TIMES * len(data)), 0, []
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(data), "zstd")
        # `read` without a size takes twice as long.
        while piece := stream.read_buffer(_PIECE):
            size += len(piece)
            if size > most:
                raise Unhealthy(
                    f"{name} has {len(data)} bytes, and unpacked more than {most}: it is not what AgentBus"
                    " wrote",
                    hint="restore this file from a copy of the archive",
                )
            pieces.append(piece)
    except OSError as error:
        raise _unreadable(name) from error
    return b"".join(pieces)


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, name: str) -> T:
    try:
        found: Any = decoder.decode(data)
        if found.format <= FORMAT:
            return found  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, ValueError) as error:
        # A newer format may have other fields.
        if (newer := _format(data)) <= FORMAT:
            raise _unreadable(name) from error
    else:
        newer = found.format
    raise ConfigError(
        f"{name} has the format {newer}, and this version of AgentBus knows {FORMAT}",
        hint="pip install --upgrade agentbus-toolkit",
    )


def _format(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_Format).format
    except (msgspec.MsgspecError, ValueError):
        return 0


def missing(name: str, *, newest: bool = False) -> Unhealthy:
    """Return the error for a missing file; if `newest`, only the Delta log has that commit."""
    return Unhealthy(
        f"{name} is missing from the archive's log",
        hint="restore it from a copy"
        + (
            ", or delete _delta_log: what is archived next starts both from the version before"
            if newest
            else "; a version is kept for a day at least"
        ),
    )


def _unreadable(name: str) -> Unhealthy:
    return Unhealthy(
        f"{name} cannot be read: it is not what AgentBus wrote",
        hint="restore this file from a copy of the archive",
    )


def _check_paths(
    files: Collection[File], removed: Iterable[str] | Mapping[str, int], name: str
) -> None:
    """Raise `Unhealthy` for a path that is not a data file's: it may lead out of the archive."""
    for file in () if len(files) >= _MANY and _are_ours(files) else files:
        found = DATA.fullmatch(file.path)
        if not found or found.group("kind", "date") != (file.kind, file.date):
            raise _foreign(file.path, name)
    for path in removed:
        if not DATA.fullmatch(path):
            raise _foreign(path, name)


def _are_ours(files: Collection[File]) -> bool:
    """Tell whether all of many paths are those of data files, faster than one by one."""
    folders: dict[tuple[str, str], str] = {}
    for file in files:
        day = file.kind, file.date
        folder = folders.get(day)
        if folder is None:
            folder = folders[day] = f"kind={file.kind}/date={file.date}/"
        if not file.path.startswith(folder):
            return False
    paths = pa.array([file.path for file in files], pa.string())
    return bool(pc.all(pc.match_substring_regex(paths, f"^{DATA.pattern}$")).as_py())


def _foreign(path: str, name: str) -> Unhealthy:
    return Unhealthy(
        f"{name} names the data file {path[:200]!a}, which AgentBus would not write",
        hint="somebody changed it: restore this file from a copy of the archive",
    )
