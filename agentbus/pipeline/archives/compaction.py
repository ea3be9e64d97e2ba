"""Merges the many files of past days into a few sorted, typed files, while readers are active."""

from __future__ import annotations

import datetime
import functools
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError, OutcomeUnknown, Unhealthy, UsageError
from agentbus.pipeline.archives.copying import FILE, Output
from agentbus.pipeline.archives.delta_table import COMPACT, ArchiveTable
from agentbus.pipeline.archives.directory import told
from agentbus.pipeline.archives.file_selection import check_schema
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.places import ArchiveTarget, Place
from agentbus.pipeline.archives.reader import read_files
from agentbus.pipeline.archives.versions import (
    ArchiveSnapshot,
    CommitConflict,
    DataFile,
    file_path,
    new_batch,
)
from agentbus.pipeline.rows import table as rows_table
from agentbus.pipeline.rows.typed_columns import TYPED, typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILE_BYTES = 128 << 20
# A file is merged with smaller ones that together have at least a fourth of its size.
_TIER = 4
# Rows of a row group, the smallest unit of reading: several tasks can read one file.
_GROUP_ROWS = 100_000
# One task often handles a whole partition: with two at once, one sorts while the other writes.
_AT_ONCE = 2

_Made: TypeAlias = list[DataFile] | None


@dataclass(frozen=True, slots=True)
class Compacted:
    """Totals of a compaction: partitions (kind and date), files, rows and bytes.

    With `dry_run` they say what would be compacted, and the figures `_after` are None.
    """

    partitions: int
    files_before: int
    files_after: int | None
    rows: int
    bytes_before: int
    bytes_after: int | None


def compact(
    spark: SparkSession | Callable[[], SparkSession],
    path: Location,
    *,
    before: str | None = None,
    dry_run: bool = False,
    grace: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Compacted:
    """Rewrite each past day of each kind: sorted, with its typed columns, in a few files.

    `before` is the date (`2026-11-20`) whose earlier days are closed; today in UTC unless given.
    Each partition is one commit: if the process is killed, the archive is as before or after a
    commit. Rows are counted before the commit; if the count is not the log's, `Unhealthy` is raised,
    without a change. Older versions can be read for another `grace` seconds, by default and at most
    the archive's retention; then replaced files are deleted. `spark` may be a function that opens a
    session: it is called once, if there is something to compact. `on_progress` is called with the
    numbers of compacted rows and of all rows to compact.
    """
    limit = rfc3339(time.time())[:10] if before is None else date(before)
    at = place(path)
    table = ArchiveTable(at)
    state = table.snapshot()
    check_schema(at, state)
    todo = list(_todo(state, limit))
    every = [file for _, files in todo for file in files]
    if dry_run:
        return Compacted(len(todo), len(every), None, _rows(every), _bytes(every), None)
    done: list[tuple[list[DataFile], list[DataFile]]] = []
    if todo:
        table.add_columns(rows_table.arrow())
        tell = on_progress or (lambda _rows, _of: None)
        tell(0, _rows(every))
        for each in _each(spark() if callable(spark) else spark, at, todo):
            done.append(each)
            tell(sum(_rows(files) for files, _ in done), _rows(every))
    old, new = ([file for each in done for file in each[n]] for n in (0, 1))
    table.sweep(state.retention if grace is None else grace)
    return Compacted(len(done), len(old), len(new), _rows(old), _bytes(old), _bytes(new))


def _todo(state: ArchiveSnapshot, limit: str) -> Iterator[tuple[str, list[DataFile]]]:
    """Yield the files to merge of each closed partition, if that is worth it."""
    found: dict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in state.files.values():
        if file.date < limit:
            found[file.date, file.kind].append(file)
    for (_, kind), files in sorted(found.items()):
        if merged := _tier(kind, files):
            yield kind, sorted(merged, key=lambda file: file.path)


def _tier(kind: str, files: list[DataFile]) -> list[DataFile]:
    """Return the files of a partition to merge: those without typed columns, and others of their size.

    A late row does not rewrite its whole day: a file is merged once the smaller ones have at least a
    fraction of its size, so that each row is rewritten a few times in all.
    """
    wanted = TYPED.get(kind, ())
    untyped = [file for file in files if not file.has_typed(wanted)]
    merged = untyped.copy()
    typed_files = (file for file in files if file.has_typed(wanted))
    for file in sorted(typed_files, key=lambda file: file.bytes):
        if file.bytes <= _TIER * _bytes(merged):
            merged.append(file)
        elif untyped or len(merged) > 1:
            break
        else:
            merged = [file]
    # Do not compact files again whose result was slightly smaller than a file may be.
    return merged if untyped or len(merged) > _pieces(merged, FILE_BYTES // 2) else []


def _each(
    spark: SparkSession, at: Place, todo: list[tuple[str, list[DataFile]]]
) -> Iterator[tuple[list[DataFile], list[DataFile]]]:
    """Compact partitions, some concurrently; yield the old and the new files of each.

    Partitions that another compaction finished first are skipped.
    """
    # Spark looks for a source in the thread's active session, which this sets.
    activate = functools.partial(spark.createDataFrame, [], "none int")
    with ThreadPoolExecutor(_AT_ONCE, initializer=activate) as pool:
        work = {pool.submit(_compact_one, spark, at, kind, files): files for kind, files in todo}
        try:
            for one in as_completed(work):
                if (made := one.result()) is not None:
                    yield work[one], made
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.interruptAll()
            raise


def _compact_one(spark: SparkSession, at: Place, kind: str, files: list[DataFile]) -> _Made:
    """Compact one partition; None if another writer replaced its files first."""
    table, columns, own = ArchiveTable(at), tuple(TYPED.get(kind, ())), rows_table.arrow()
    stored = pa.schema([*FILE, *(own.field(name) for name in columns)], FILE.metadata)
    job = _CompactionJob(at.target, kind, files[0].date, new_batch(), stored, columns, _GROUP_ROWS)
    try:
        df = _ordered(read_files(spark, at, files), _pieces(files, FILE_BYTES))
        # Add typed columns after sorting: sorting them as well would cost more.
        df = typed(df, kind).select(*stored.names)
        written = _write(df, at, job)
        _check(files, written)
    except BaseException:
        at.discard(job.batch)
        raise
    try:
        table.replace(table.snapshot(), COMPACT, job.batch, written, [file.path for file in files])
    except OutcomeUnknown:
        raise
    except AgentBusError as error:
        at.discard(job.batch)
        if isinstance(error, CommitConflict):
            return None
        raise
    return written


@dataclass(frozen=True, slots=True)
class _CompactionJob:
    """The parameters that all tasks of one partition share."""

    target: ArchiveTarget
    kind: str
    date: str
    batch: str
    stored: pa.Schema
    columns: tuple[str, ...]
    group: int

    @property
    def receipt(self) -> str:
        """The name of the file that lists the written files."""
        return f"_delta_log/{self.batch}.tmp"


def _write(df: DataFrame, at: Place, job: _CompactionJob) -> list[DataFile]:
    """Write sorted rows, a file for each of Spark's partitions, by the writer of archives."""
    name = f"agentbus-{job.batch}"

    class CompactedFiles(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return _FilesWriter(job)

    df.sparkSession.dataSource.register(CompactedFiles)
    df.write.format(name).mode("append").save()
    written = msgspec.json.decode(at.read(job.receipt), type=list[DataFile])
    at.delete(job.receipt)
    return written


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    file: DataFile | None


class _FilesWriter(DataSourceArrowWriter):
    """Writes the rows of each task as a data file; the files count that are in the receipt."""

    def __init__(self, job: _CompactionJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        job = self._job
        system, root = job.target.filesystem()
        # The file of a retried task must not collide with that of its first attempt.
        path = file_path(job.kind, job.date, job.batch, uuid.uuid4().hex[:12], job.columns)
        output = Output(system, f"{root}/{path}", path, job.kind, job.date, job.stored, job.group)
        with told("write to", root):
            try:
                for rows in iterator:
                    if rows.num_rows:
                        output.add(rows)
                return _Written(output.close().file if output.rows else None)
            except BaseException:
                output.abandon()
                raise

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = [each.file for each in messages if isinstance(each, _Written) and each.file]
        Place(self._job.target).write(self._job.receipt, msgspec.json.encode(files))


def _ordered(df: DataFrame, pieces: int) -> DataFrame:
    order = ["stream", "time", "seq"]
    spread = df.repartition(1) if pieces == 1 else df.repartitionByRange(pieces, *order)
    return spread.sortWithinPartitions(*order)


def _check(files: list[DataFile], made: list[DataFile]) -> None:
    """Raise `Unhealthy` unless the written files hold as many rows as the log says."""
    if _rows(files) != _rows(made):
        raise Unhealthy(
            f"the files of {files[0].kind} of {files[0].date} have {_rows(files)} rows by the log, and read"
            f" were {_rows(made)}",
            hint="nothing was changed; verify(spark, path) checks the archive",
            shell_hint="nothing was changed; 'agentbus archive verify' checks the archive",
        )


def _pieces(files: list[DataFile], size: int) -> int:
    return max(1, -(-_bytes(files) // size))


def _rows(files: list[DataFile]) -> int:
    return sum(file.rows for file in files)


def _bytes(files: list[DataFile]) -> int:
    return sum(file.bytes for file in files)


def date(text: str) -> str:
    """Return a date unchanged; raises `UsageError` if it is not a date."""
    try:
        # `fromisoformat` also accepts other formats, which cannot be compared as text.
        if datetime.date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise UsageError(f"{text[:40]!a} is not a date", hint="give one such as 2026-11-20")
