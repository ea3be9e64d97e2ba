"""Writes commits and states of an archive in the format of a Delta log, which many engines read.

The result depends only on the commit, so that every writer produces the same bytes.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from agentbus.core.errors import Unhealthy
from agentbus.core.version import __version__
from agentbus.pipeline.archives.versions import (
    APPEND,
    COMPACT,
    CREATE,
    Commit,
    File,
    State,
)

# Names of column types in the log, and in Delta.
_TYPES: Mapping[str, Any] = {
    **{name: name for name in ("string", "timestamp", "date", "double", "boolean")},
    "int": "integer",
    "bigint": "long",
    "map<string,string>": {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
    "array<bigint>": {"type": "array", "elementType": "long", "containsNull": True},
}
_PARTITIONS = ["kind", "date"]
_OPERATIONS = {CREATE: "CREATE TABLE", APPEND: "WRITE", COMPACT: "OPTIMIZE"}
# A writer feature that no other engine supports prevents other engines from writing: the archive
# would not contain their changes. All engines may read.
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["agentbus"]}
# Without this setting, engines take the other columns for null in all files, and filters on them
# would match nothing.
_CONFIGURATION = {"delta.dataSkippingStatsColumns": "stream,time"}
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 (written as UTC, without an offset)
# The last millisecond of the year 9999, the last year of four digits.
_LAST_MS = 253402300799999

_TEXTS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_PROTOCOL_TYPE = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("writerFeatures", _NAMES),
    ]
)
_METADATA_TYPE = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", _NAMES),
        ("configuration", _TEXTS),
    ]
)


def commit_text(commit: Commit, place: Callable[[str], str]) -> bytes:
    """Return a commit in the format of a Delta log; `place` maps paths to data files."""
    changes = commit.operation != COMPACT
    actions: list[dict[str, Any]] = [{"commitInfo": _info(commit)}]
    if commit.operation == CREATE:
        actions.append({"protocol": _PROTOCOL})
    if commit.columns:
        actions.append({"metaData": _metadata(commit.archive, commit.project, commit.columns)})
    actions += [
        {
            "remove": {
                "path": place(path),
                "deletionTimestamp": commit.at_ms,
                "dataChange": changes,
            }
        }
        for path in commit.removed
    ]
    # A compacted file holds the rows of the files that it replaces: a reader of changes skips all
    # of them.
    actions += [{"add": _added(file, place(file.path), changes)} for file in commit.files]
    return b"".join(orjson.dumps(action) + b"\n" for action in actions)


def checkpoint_bytes(state: State, place: Callable[[str], str]) -> tuple[bytes, int]:
    """Return a state as a checkpoint of a Delta log, and its number of actions."""
    metadata = _metadata(state.archive, state.project, state.columns)
    metadata["configuration"] = list(_CONFIGURATION.items())
    kinds = {
        "protocol": pa.array([_PROTOCOL], _PROTOCOL_TYPE),
        "metaData": pa.array([metadata], _METADATA_TYPE),
        "add": _added_all(list(state.files.values()), place),
        "remove": _removed_all(state.removed, place),
    }
    total = sum(map(len, kinds.values()))
    columns, before = {}, 0
    for name, rows in kinds.items():
        after = total - before - len(rows)
        parts = [pa.nulls(before, rows.type), rows, pa.nulls(after, rows.type)]
        columns[name] = pa.concat_arrays(parts)
        before += len(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data, total


def _added_all(files: Sequence[File], place: Callable[[str], str]) -> pa.StructArray:
    """Return the actions that add these files, column by column, since there may be many."""
    values = [value for file in files for value in (file.kind, file.date)]
    held: dict[str, Any] = {
        "path": pa.array([place(file.path) for file in files], pa.string()),
        "partitionValues": pa.MapArray.from_arrays(
            pa.array(range(0, len(values) + 1, 2), pa.int32()),
            pa.array(_PARTITIONS * len(files), pa.string()),
            pa.array(values, pa.string()),
        ),
        "size": pa.array([file.bytes for file in files], pa.int64()),
        "modificationTime": pa.array([file.to_ms for file in files], pa.int64()),
        "dataChange": pa.array([False] * len(files), pa.bool_()),
        "stats": pa.array([_statistics(file) for file in files], pa.string()),
    }
    return pa.StructArray.from_arrays(list(held.values()), names=list(held))


def _removed_all(removed: Mapping[str, int], place: Callable[[str], str]) -> pa.StructArray:
    held: dict[str, Any] = {
        "path": pa.array(map(place, removed), pa.string()),
        "deletionTimestamp": pa.array(removed.values(), pa.int64()),
        "dataChange": pa.array([False] * len(removed), pa.bool_()),
    }
    return pa.StructArray.from_arrays(list(held.values()), names=list(held))


def _info(commit: Commit) -> dict[str, Any]:
    return {
        "timestamp": commit.at_ms,
        "operation": _OPERATIONS.get(commit.operation, commit.operation),
        "operationParameters": {},
        "engineInfo": "AgentBus",
        "agentbusVersion": commit.version,
        "agentbusBatch": commit.batch,
    }


def _metadata(archive: str, project: str, columns: Mapping[str, str]) -> dict[str, Any]:
    fields = []
    for name, type in columns.items():
        if type not in _TYPES:
            raise Unhealthy(
                f"a column of the archive has the type {type[:60]!a}, which {__version__} does not know",
                hint="pip install --upgrade agentbus-toolkit",
            )
        fields.append({"name": name, "type": _TYPES[type], "nullable": True, "metadata": {}})
    return {
        "id": _uuid(archive),
        "name": project,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps({"type": "struct", "fields": fields}).decode(),
        "partitionColumns": _PARTITIONS,
        "configuration": _CONFIGURATION,
    }


def _uuid(archive: str) -> str:
    try:
        return str(uuid.UUID(archive))
    except ValueError:
        # The log was changed by hand.
        return archive


def _added(file: File, path: str, changes: bool) -> dict[str, Any]:
    return {
        "path": path,
        "partitionValues": {"kind": file.kind, "date": file.date},
        "size": file.bytes,
        # Use the time of the newest row: a checkpoint does not record when a file was committed.
        "modificationTime": file.to_ms,
        "dataChange": changes,
        "stats": _statistics(file),
    }


def _statistics(file: File) -> str:
    """Return the statistics of a file's rows that are known without reading it."""
    known: dict[str, Any] = {"numRecords": file.rows}
    if file.streams and 0 <= file.from_ms <= file.to_ms <= _LAST_MS:
        known["minValues"] = {"stream": min(file.streams), "time": _moment(file.from_ms)}
        known["maxValues"] = {"stream": max(file.streams), "time": _moment(file.to_ms)}
        known["nullCount"] = {"stream": 0, "time": 0}
    return orjson.dumps(known).decode()


def _moment(ms: int) -> str:
    at = _EPOCH + datetime.timedelta(milliseconds=ms)
    return f"{at.isoformat(timespec='milliseconds')}Z"
