"""Merges the many files of past days into a few sorted, typed files, while readers are active."""

from __future__ import annotations

import datetime
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f

from agentbus.core.clock import rfc3339
from agentbus.core.errors import Unhealthy, UsageError
from agentbus.core.running import runs
from agentbus.pipeline.archives.delta_table import COMPACT, RETENTION, ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.reader import check_schema, literal, read_files
from agentbus.pipeline.archives.versions import (
    ArchiveSnapshot,
    CommitConflict,
    DataFile,
    file_path,
    new_batch,
)
from agentbus.pipeline.rows import schema, table as rows_table
from agentbus.pipeline.rows.typed_columns import TYPED, typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES = 128 << 20
# A file is merged with smaller ones that together have at least a fourth of its size.
_TIER = 4
# Sizes of a row group, the smallest unit of reading: several tasks can read one file, and skip
# parts of it.
_GROUP_BYTES, _GROUP_ROWS = 16 << 20, 100_000
# The directory for Spark's output before the files are renamed; readers skip names that begin with
# "_".
_WORK = "_compacting"
_WORKER = re.compile(rf"{_WORK}/(\d+)-([0-9a-f]{{16}})@([^/]+)/")
_ABANDONED = 86_400.0
# One task often handles a whole partition: with two at once, one sorts while the other writes.
_AT_ONCE = 2
# Spark's temporary column must not have the name of a column of the schema.
_FILE = "agentbus_file"
_ENDS = (f.min, f.max)

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
    path: str | os.PathLike[str] | Place,
    *,
    before: str | None = None,
    dry_run: bool = False,
    grace: float = RETENTION,
    on_progress: Callable[[int, int], None] | None = None,
) -> Compacted:
    """Rewrite each past day of each kind: sorted, with its typed columns, in a few files.

    `before` is the date (`2026-11-20`) whose earlier days are closed; today in UTC unless given.
    Each partition is one commit: if the process is killed, the archive is as before or after a
    commit. Rows are counted before the commit; if the count is not the log's, `Unhealthy` is raised,
    without a change. Older versions can be read for another `grace` seconds, at most a day;
    then replaced files are deleted. `spark` may be a function that opens a session: it is called
    once, if there is something to compact. `on_progress` is called with the numbers of compacted
    rows and of all rows to compact.
    """
    limit = rfc3339(time.time())[:10] if before is None else date(before)
    at = place(path) if not isinstance(path, Place) else path
    table = ArchiveTable(at)
    state = table.snapshot()
    check_schema(at, state)
    todo = list(_todo(state, limit))
    every = [file for _, files in todo for file in files]
    if dry_run:
        return Compacted(len(todo), len(every), None, _rows(every), _bytes(every), None)
    _clean(at)
    done: list[tuple[list[DataFile], list[DataFile]]] = []
    if todo:
        table.add_columns(rows_table.arrow())
        tell = on_progress or (lambda _rows, _of: None)
        tell(0, _rows(every))
        for each in _each(spark() if callable(spark) else spark, at, todo):
            done.append(each)
            tell(sum(_rows(files) for files, _ in done), _rows(every))
    old, new = ([file for each in done for file in each[n]] for n in (0, 1))
    table.sweep(grace)
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
    with ThreadPoolExecutor(_AT_ONCE) as pool:
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
    table, batch = ArchiveTable(at), new_batch()
    work = f"{_WORK}/{os.getpid()}-{batch}@{platform.node()}"
    raw = [name for name in schema.COLUMNS if name != "kind"]
    written: list[DataFile] = []
    try:
        # Create a file now: the directory must be found if this process is killed before Spark
        # writes.
        at.write(f"{work}/_begun", b"")
        df = _ordered(read_files(spark, at, files), _pieces(files, FILE_BYTES))
        # Add typed columns after sorting: sorting them as well would cost more.
        df = typed(df, kind).select(*raw, *TYPED.get(kind, ()))
        _write(df, at.uri(f"{work}/files"))
        named = _measured(df, at, f"{work}/files", files[0], batch)
        written = list(named.values())
        _check(files, written)
        for name, file in named.items():
            at.move(name, file.path)
        table.replace(table.snapshot(), COMPACT, batch, written, [file.path for file in files])
    except CommitConflict:
        for file in written:
            at.delete(file.path)
        return None
    else:
        return written
    finally:
        at.remove_tree(work)


def _ordered(df: DataFrame, pieces: int) -> DataFrame:
    order = ["stream", "time", "seq"]
    spread = df.repartition(1) if pieces == 1 else df.repartitionByRange(pieces, *order)
    return spread.sortWithinPartitions(*order)


def _write(df: DataFrame, uri: str) -> None:
    df.write.options(
        **{"parquet.block.size": _GROUP_BYTES, "parquet.block.row.count.limit": _GROUP_ROWS},
        compression="zstd",
        # Spark's default type has no statistics, and other readers refuse it.
        outputTimestampType="TIMESTAMP_MICROS",
    ).parquet(uri)


def _measured(
    compacted: DataFrame, at: Place, work: str, like: DataFile, batch: str
) -> dict[str, DataFile]:
    """Return the written files by name, each as the data file that it is to be, by reading it again."""
    sizes = {e.name: e.size for e in at.listing(work) if e.name.endswith(".parquet")}
    if not sizes:
        return {}
    reader = compacted.sparkSession.read.schema(compacted.schema)
    df = reader.parquet(*literal(at, [at.uri(work)]))
    rows = (
        df.groupBy(f.col("_metadata.file_name").alias(_FILE))
        .agg(
            f.count("*").alias("rows"),
            f.unix_millis(f.min("time")).alias("from_ms"),
            f.unix_millis(f.max("time")).alias("to_ms"),
            *(
                end(name).alias(f"{end.__name__}_{name}")
                for name in ("stream", "queue")
                for end in _ENDS
            ),
        )
        .collect()
    )
    by_name = {row[_FILE]: row for row in rows}
    columns = TYPED.get(like.kind, ())
    measured = {}
    for part, (name, size) in enumerate(sorted(sizes.items())):
        if (row := by_name.get(name.rpartition("/")[2])) is not None:
            queues = row["min_queue"], row["max_queue"]
            measured[name] = DataFile(
                file_path(like.kind, like.date, batch, part, columns),
                like.kind,
                like.date,
                row["rows"],
                size,
                row["from_ms"],
                row["to_ms"],
                (row["min_stream"], row["max_stream"]),
                None if None in queues else queues,
            )
    return measured


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


def _clean(at: Place) -> None:
    """Delete leftovers of killed compactions: of this host, or more than a day old."""
    oldest = time.time() - _ABANDONED
    newest: dict[str, float] = defaultdict(float)
    for entry in at.listing(_WORK):
        if found := _WORKER.match(entry.name):
            newest[found[0]] = max(newest[found[0]], entry.modified)
    for folder, modified in newest.items():
        pid, host = folder.partition("/")[2].partition("-")[0], folder.partition("@")[2]
        if modified < oldest or (host == f"{platform.node()}/" and not runs(int(pid))):
            at.remove_tree(folder.rstrip("/"))
