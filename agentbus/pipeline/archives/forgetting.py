"""Deletes rows from an archive: those of a person, a task or a condition, and those of old days.

A file with such rows is written again without them, beside archivers that go on. Every partition is
one commit, so that a process that is killed leaves each whole.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from agentbus.core.clock import rfc3339
from agentbus.core.errors import Unhealthy, UsageError
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.directory import told
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.versions import (
    POSITION,
    CommitConflict,
    DataFile,
    file_path,
    new_batch,
)
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import TYPED
from agentbus.queues import ids

FORGET, EXPIRE = "forget", "expire"
_ATTEMPTS = 20
# The columns that a condition may name; the others are read only to write a row again.
_READ = ("stream", "id", "agent", "queue", "fields")
_Mask: TypeAlias = Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The receipt of a deletion: how many rows are gone from which version on, and from how many files.

    Older versions have them until `files_until`, when their files are deleted.
    """

    version: int
    rows: int
    files: int
    at: str
    files_until: str


def forget(
    path: Location,
    *,
    agent: str | None = None,
    task: str | None = None,
    key: str | None = None,
    where: str | None = None,
    now: bool = False,
) -> Forgotten:
    """Delete the rows that meet all conditions; with `now`, the files of older versions, too.

    `agent` is the name of the speaker, publisher or worker; `task` is the id of a task, and also means
    its dead letters and attempts; `key` is the key of tasks; `where` is a condition in SQL on the
    columns of a row. Needs no Spark. Raises `UsageError` without a condition.
    """
    table = ArchiveTable(place(path))
    state = table.snapshot()
    masks: list[_Mask] = []
    if agent is not None:
        masks.append(lambda rows: pc.equal(rows.column("agent"), agent))
    if task is not None:
        masks.append(_of_task(task))
    if key is not None:
        masks.append(_of_key(key))
    if where is not None:
        masks.append(_among(_selected(table.place, where)))
    if not masks:
        raise UsageError("nothing says what to forget", hint="give an agent, task, key or where")
    rows = files = 0
    # A gap holds nothing but numbers, and is needed for the accounts.
    groups = {(file.kind, file.date) for file in state.files.values() if file.kind != schema.GAP}
    for group in sorted(groups):
        forgotten, rewritten = _rewrite(table, group, masks)
        rows += forgotten
        files += rewritten
    return _receipt(table, rows, files, now=now)


def expire(
    path: Location, *, before: str, kinds: Collection[str] = (), now: bool = False
) -> Forgotten:
    """Delete the days before a date, of some kinds or of all; with `now`, as `forget` does."""
    for kind in kinds:
        if kind not in schema.KINDS:
            raise UsageError(
                f"{kind[:40]!a} is not a kind of entry", hint=f"kinds: {', '.join(schema.KINDS)}"
            )
    table = ArchiveTable(place(path))
    for _ in range(_ATTEMPTS):
        state = table.snapshot()
        old = [
            file
            for file in state.files.values()
            if file.date < before and file.kind in (kinds or schema.KINDS)
        ]
        try:
            if old:
                table.replace(state, EXPIRE, new_batch(), [], [file.path for file in old])
        except CommitConflict:
            # A compaction has replaced some of them.
            continue
        return _receipt(table, sum(file.rows for file in old), len(old), now=now)
    raise table.busy()


def _receipt(table: ArchiveTable, rows: int, files: int, *, now: bool) -> Forgotten:
    at = time.time()
    if now:
        table.sweep(0)
    state = table.snapshot()
    until = at if now else at + state.retention
    return Forgotten(state.version, rows, files, rfc3339(at), rfc3339(until))


def _rewrite(
    table: ArchiveTable, group: tuple[str, str], masks: Sequence[_Mask]
) -> tuple[int, int]:
    """Write the files of a partition again without the rows of all masks; return rows and files."""
    for _ in range(_ATTEMPTS):
        state, batch = table.snapshot(), new_batch()
        rewritten_files: list[DataFile] = []
        gone: list[DataFile] = []
        for file in state.files.values():
            if (file.kind, file.date) == group:
                path = file_path(*group, batch, len(gone), _typed(file))
                kept = _without(table.place, file, path, masks)
                if kept is not None:
                    gone.append(file)
                    rewritten_files += [kept] if kept.rows else []
        if not gone:
            return 0, 0
        try:
            table.replace(state, FORGET, batch, rewritten_files, [file.path for file in gone])
        except CommitConflict:
            for file in rewritten_files:
                table.place.delete(file.path)
            continue
        return sum(file.rows for file in gone) - sum(file.rows for file in rewritten_files), len(
            gone
        )
    raise table.busy()


def _typed(file: DataFile) -> Collection[str]:
    columns = TYPED.get(file.kind, ())
    return columns if file.has_typed(columns) else ()


def _without(at: Place, file: DataFile, path: str, masks: Sequence[_Mask]) -> DataFile | None:
    """Write the rows of a file that no one is to forget to a path; None if that is all of them.

    Without rows, no file is written.
    """
    system, root = at.target.filesystem()
    name = f"{root}/{file.path}"
    with told("read", name):
        try:
            source = pq.ParquetFile(name, filesystem=system)
        except (FileNotFoundError, pa.ArrowException) as error:
            raise Unhealthy(
                f"the archive's data file {file.path} is missing or not what was written",
                hint="restore it from a copy; nothing of this day was forgotten",
            ) from error
        columns = [column for column in _READ if column in source.schema_arrow.names]
        kept = []
        for group in range(source.num_row_groups):
            rows = source.read_row_group(group, columns=columns).combine_chunks()
            batch = (rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)])[0]
            mask = pc.fill_null(masks[0](batch), fill_value=False)
            for other in masks[1:]:
                mask = pc.and_(mask, pc.fill_null(other(batch), fill_value=False))
            kept.append(pc.invert(mask))
        number = sum(pc.sum(mask).as_py() or 0 for mask in kept)
        if number == sum(map(len, kept)):
            return None
        if number:
            at.make_folder(path)
            with pq.ParquetWriter(
                f"{root}/{path}", source.schema_arrow, filesystem=system, compression="zstd"
            ) as sink:
                for group, mask in enumerate(kept):
                    rows = source.read_row_group(group).filter(mask)
                    if rows.num_rows:
                        sink.write_table(rows, row_group_size=rows.num_rows)
    size = at.sizes([path])[0] if number else 0
    return DataFile(
        *(path, file.kind, file.date, number, size or 0, file.from_ms, file.to_ms),
        *(file.streams, file.queues),
    )


def _of_task(task: str) -> _Mask:
    """Return the mask of the rows of a task: its entry, its dead letters and its attempts."""
    entry, queue, priority = ids.split(task)
    stream = f"q:{ids.suffix(queue, priority)[1:]}"

    def mask(rows: pa.RecordBatch) -> pa.Array:
        own = pc.and_(pc.equal(rows.column("stream"), stream), pc.equal(rows.column("id"), entry))
        letters = pc.starts_with(rows.column("stream"), "dlq:")
        of_queue = pc.and_(letters, pc.equal(rows.column("queue"), queue))
        original = pc.and_(of_queue, pc.equal(_field(rows, "original_id"), entry))
        named = pc.equal(_field(rows, "task_id"), task)
        parts = [pc.fill_null(each, fill_value=False) for each in (own, original, named)]
        return functools.reduce(pc.or_, parts)

    return mask


def _field(rows: pa.RecordBatch, name: str) -> pa.Array:
    return pc.map_lookup(rows.column("fields"), query_key=name, occurrence="first")


def _of_key(key: str) -> _Mask:
    """Return the mask of tasks with a key, which their envelope holds."""

    def mask(rows: pa.RecordBatch) -> pa.Array:
        keys = [_key(meta) == key for meta in _field(rows, "meta").to_pylist()]
        return pa.array(keys, pa.bool_())

    return mask


def _key(meta: str | None) -> Any:
    if meta is None or '"key"' not in meta:
        return None
    try:
        envelope = orjson.loads(meta)
    except orjson.JSONDecodeError:
        return None
    return envelope.get("key") if isinstance(envelope, dict) else None


def _selected(at: Place, where: str) -> pa.Array:
    """Return the streams and ids of the rows that meet a condition in SQL."""
    table = DeltaTable(at.target.uri(), storage_options=at.target.storage_options())
    query = f"SELECT stream, id FROM rows WHERE kind <> '{POSITION}' AND ({where})"  # noqa: S608
    try:
        found: Any = pa.table(QueryBuilder().register("rows", table).execute(query).read_all())
    except (DeltaError, ValueError, OSError) as error:
        raise UsageError(
            f"the condition cannot be evaluated: {str(error).partition(chr(10))[0][:200]}",
            hint="use SQL on the columns of a row, as in docs/reference/archive.md",
        ) from error
    return _names_of(found["stream"], found["id"])


def _among(names: pa.Array) -> _Mask:
    return lambda rows: pc.is_in(_names_of(rows.column("stream"), rows.column("id")), names)


def _names_of(streams: Any, entries: Any) -> pa.Array:
    joined = pc.binary_join_element_wise(streams.cast(pa.string()), entries.cast(pa.string()), " ")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
