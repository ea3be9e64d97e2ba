"""Merges the many files of past days into a few sorted, typed files, while readers are active."""

from __future__ import annotations

import datetime
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as f

from agentbus.core.clock import rfc3339
from agentbus.core.errors import Refused, Unhealthy, UsageError
from agentbus.core.running import runs
from agentbus.core.stream import position
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log, new_batch
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.reader import check_schema, literal, read_files
from agentbus.pipeline.archives.retention import RETENTION
from agentbus.pipeline.archives.versions import (
    COMPACT,
    CommitConflict,
    File,
    State,
    StreamSpan,
    file_path,
)
from agentbus.pipeline.rows import schema
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
_WORKER = re.compile(rf"{_WORK}/(\d+)-([0-9a-f]{{8}})@([^/]+)/")
_ABANDONED = 86_400.0
_ATTEMPTS = 100
# One task often handles a whole partition: with two at once, one sorts while the other writes.
_AT_ONCE = 2
# Spark's temporary column must not have the name of a column of the schema.
_FILE = "agentbus_file"


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
    commit. Rows are counted by stream before the commit; if the counts differ, `Unhealthy` is
    raised, without a change. Older versions can be read for another `grace` seconds, at most a day;
    then replaced files are deleted. `spark` may be a function that opens a session: it is called
    once, if there is something to compact. `on_progress` is called with the numbers of compacted
    rows and of all rows to compact.
    """
    limit = rfc3339(time.time())[:10] if before is None else date(before)
    at = place(path) if not isinstance(path, Place) else path
    log = Log(at)
    state = log.open()
    check_schema(at, state)
    todo = list(_todo(state, limit))
    every = [file for _, files in todo for file in files]
    if dry_run:
        return Compacted(len(todo), len(every), None, _rows(every), _bytes(every), None)
    _clean(at)
    done: list[tuple[list[File], list[File]]] = []
    if todo:
        tell = on_progress or (lambda _rows, _of: None)
        tell(0, _rows(every))
        for each in _each(spark() if callable(spark) else spark, at, todo):
            done.append(each)
            tell(sum(_rows(files) for files, _ in done), _rows(every))
    old, new = ([file for each in done for file in each[n]] for n in (0, 1))
    log.settle(log.open(), grace=grace, sweep=True)
    return Compacted(len(done), len(old), len(new), _rows(old), _bytes(old), _bytes(new))


def _todo(state: State, limit: str) -> Iterator[tuple[str, list[File]]]:
    """Yield the files to merge of each closed partition, if that is worth it."""
    found: dict[tuple[str, str], list[File]] = defaultdict(list)
    for file in state.files.values():
        if file.date < limit:
            found[file.date, file.kind].append(file)
    for (_, kind), files in sorted(found.items()):
        if merged := _tier(kind, files):
            yield kind, sorted(merged, key=lambda file: file.path)


def _tier(kind: str, files: list[File]) -> list[File]:
    """Return the files of a partition to merge: those without typed columns, and others of their size.

    A late row does not rewrite its whole day: a file is merged once the smaller ones have at least a
    fraction of its size, so that each row is rewritten a few times in all.
    """
    wanted = set(TYPED.get(kind, ()))
    untyped = [file for file in files if wanted - set(file.typed)]
    merged = untyped.copy()
    typed_files = (file for file in files if not wanted - set(file.typed))
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
    spark: SparkSession, at: Place, todo: list[tuple[str, list[File]]]
) -> Iterator[tuple[list[File], list[File]]]:
    """Compact partitions, some concurrently; yield the old and the new files of each.

    Partitions that another compaction finished first are skipped.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        work = {
            pool.submit(_compact_one, spark, Log(at), kind, files): files for kind, files in todo
        }
        try:
            for one in as_completed(work):
                if (made := one.result()) is not None:
                    yield work[one], made
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.interruptAll()
            raise


def _compact_one(spark: SparkSession, log: Log, kind: str, files: list[File]) -> list[File] | None:
    """Compact one partition; None if another compaction replaced its files first."""
    at, batch = log.place, new_batch()
    work = f"{_WORK}/{os.getpid()}-{batch}@{platform.node()}"
    raw = [name for name in schema.COLUMNS if name != "kind"]
    try:
        # Create a file now: the directory must be found if this process is killed before Spark
        # writes.
        at.replace(f"{work}/_begun", b"")
        df = _ordered(read_files(spark, at, files), _pieces(files, FILE_BYTES))
        # Add typed columns after sorting: sorting them as well would cost more.
        df = typed(df, kind).select(*raw, *TYPED.get(kind, ()))
        _write(df, at.uri(f"{work}/files"))
        written = _measured(df, at, f"{work}/files", files[0])
        _check(files, [file for _, file in written])
        return _commit(log, batch, files, written)
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


def _measured(compacted: DataFrame, at: Place, work: str, like: File) -> list[tuple[str, File]]:
    """Return the written files with their contents, as measured by reading them again."""
    sizes = {e.name: e.size for e in at.listing(work) if e.name.endswith(".parquet")}
    if not sizes:
        return []
    reader = compacted.sparkSession.read.schema(compacted.schema)
    df = reader.parquet(*literal(at, [at.uri(work)]))
    place_in_order = f.struct("time", "seq")
    found = (
        df.withColumn(_FILE, f.col("_metadata.file_name"))
        .groupBy(_FILE, "stream")
        .agg(
            # An entry may have a row for each of several attempts.
            (f.count_distinct("id") if like.kind == schema.ATTEMPT else f.count("*")).alias(
                "entries"
            ),
            f.count("*").alias("rows"),
            f.min_by("id", place_in_order).alias("first"),
            f.max_by("id", place_in_order).alias("last"),
            f.unix_millis(f.min("time")).alias("from_ms"),
            f.unix_millis(f.max("time")).alias("to_ms"),
        )
        .collect()
    )
    by_name = defaultdict(list)
    for row in found:
        by_name[row[_FILE]].append(row)
    measured = []
    for name, size in sorted(sizes.items()):
        rows = sorted(by_name.get(name.rpartition("/")[2], ()), key=lambda row: row["stream"])
        if rows:
            streams = {
                row["stream"]: StreamSpan(row["entries"], row["first"], row["last"]) for row in rows
            }
            file = msgspec.structs.replace(
                like,
                path="",
                rows=sum(row["rows"] for row in rows),
                bytes=size,
                streams=streams,
                from_ms=min(row["from_ms"] for row in rows),
                to_ms=max(row["to_ms"] for row in rows),
                typed=tuple(sorted(TYPED.get(like.kind, ()))),
            )
            measured.append((name, file))
    return measured


def _commit(
    log: Log, batch: str, files: list[File], written: list[tuple[str, File]]
) -> list[File] | None:
    at = log.place
    for _ in range(_ATTEMPTS):
        state = log.open()
        # A concurrent append does not change the files that were read; another compaction does.
        if any(file.path not in state.files for file in files):
            return None
        made = []
        for part, (name, file) in enumerate(written):
            path = file_path(file.kind, file.date, state.version + 1, batch, part)
            at.copy(name, at.data(path))
            made.append(msgspec.structs.replace(file, path=path))
        try:
            log.commit(state, COMPACT, batch, made, removed=[file.path for file in files])
        except CommitConflict:
            for file in made:
                at.delete(at.data(file.path))
        else:
            return made
    raise Refused(f"others commit to {at} all the time", hint="try again when less is going on")


def _check(files: list[File], made: list[File]) -> None:
    """Raise `Unhealthy` unless the written files hold each stream's rows from first to last."""
    before, after = _sums(files), _sums(made)
    for stream in sorted(before.keys() | after.keys()):
        if before.get(stream) != after.get(stream):
            raise Unhealthy(
                f"the files of {files[0].kind} of {files[0].date} do not hold what the log says of"
                f" {stream}: {_said(before.get(stream))}, and read were {_said(after.get(stream))}",
                hint="nothing was changed; verify(spark, path) checks the archive",
                shell_hint="nothing was changed; 'agentbus archive verify' checks the archive",
            )
    # An entry may have several rows.
    if _rows(files) != _rows(made):
        raise Unhealthy(
            f"the files of {files[0].kind} of {files[0].date} have {_rows(files)} rows by the log, and read"
            f" were {_rows(made)}",
            hint="nothing was changed; verify(spark, path) checks the archive",
            shell_hint="nothing was changed; 'agentbus archive verify' checks the archive",
        )


def _sums(files: list[File]) -> Mapping[str, StreamSpan]:
    found: dict[str, StreamSpan] = {}
    for file in files:
        for stream, span in file.streams.items():
            old = found.get(stream, StreamSpan(0, span.first, span.last))
            found[stream] = StreamSpan(
                old.rows + span.rows,
                min(old.first, span.first, key=position),
                max(old.last, span.last, key=position),
            )
    return found


def _said(span: StreamSpan | None) -> str:
    return f"{span.rows} from {span.first} to {span.last}" if span else "none"


def _pieces(files: list[File], size: int) -> int:
    return max(1, -(-_bytes(files) // size))


def _rows(files: list[File]) -> int:
    return sum(file.rows for file in files)


def _bytes(files: list[File]) -> int:
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
