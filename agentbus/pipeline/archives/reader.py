"""Reads an archive with Spark: the rows of its committed files, each exactly once."""

from __future__ import annotations

import functools
import operator
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from agentbus.core.errors import ConfigError, NotFound, UsageError
from agentbus.core.timespec import since as starting, stream_id
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile
from agentbus.pipeline.rows import schema, table
from agentbus.pipeline.rows.typed_columns import COMPACTED, TYPED, types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Limits of times: Spark stores microseconds in 63 bits, far beyond the ids of any clock.
LAST_MS = 2**63 // 1000 - 1
LAST_SEQ = 2**63 - 1
# Spark's limit of files that it lists without tasks, and the number of tasks for more files.
_FEW = 32
_LISTERS = 16


@dataclass(frozen=True, slots=True)
class IdRange:
    """Entries from an id up to, but excluding, another, each as (ms, seq); None: unbounded."""

    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None

    def may_hold(self, file: DataFile) -> bool:
        """Tell whether a file may contain rows in this range, by its statistics."""
        if self.start is not None and file.to_ms < self.start[0]:
            return False
        return self.end is None or (file.from_ms, 0) < self.end

    def condition(self) -> Column | None:
        """Return the condition for rows in this range, in a form that uses Parquet's statistics."""
        at, seq = f.col("time"), f.col("seq")
        held: list[Column] = []
        if self.start is not None:
            moment, first = _moment(self.start[0]), min(self.start[1], LAST_SEQ)
            held.append(at >= moment)
            if first:
                held.append((at > moment) | (seq >= f.lit(first)))
        if self.end is not None:
            moment, last = _moment(self.end[0]), min(self.end[1], LAST_SEQ)
            if last:
                held += [at <= moment, (at < moment) | (seq < f.lit(last))]
            else:
                held.append(at < moment)
        return functools.reduce(operator.and_, held) if held else None


def between(since: str | None, until: str | None, *, now: float | None = None) -> IdRange:
    """Convert two points in time, each an id, a time or a duration, to a range of ids.

    With times and durations, `since` is inclusive and `until` exclusive. A full id is a position of
    a reader: entries after `since`, up to and including `until`.
    """
    now = time.time() if now is None else now
    # `since` selects the entries after an id and `until` those up to an id, so both convert to the
    # next id.
    start = None if since is None else stream_id(starting(since, now))
    end = None if until is None else stream_id(starting(until, now))
    if start is not None and end is not None and start >= end:
        raise UsageError(f"there is nothing from {since} until {until}", hint="swap them")
    return IdRange(start, end)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Place,
    *,
    since: str | None = None,
    until: str | None = None,
    kinds: Sequence[str] | None = None,
    version: int | None = None,
    marked: bool = False,
) -> DataFrame:
    """Return the rows of an archive: the schema's columns, typed columns, and `date`.

    The log selects files by kind and time, so that a short range of a long archive is read fast.
    Typed columns are null in files that were not compacted; `typed.typed` fills them in, without
    reading `fields` of compacted rows if rows are `marked` by a column `compacted`. The frame does
    not show later commits. Raises `NotFound` without an archive, or if `version` is no longer kept;
    `ConfigError` if a newer AgentBus wrote it. No job runs.
    """
    at = path if isinstance(path, Place) else place(path)
    return read_range(spark, at, between(since, until), kinds, version, marked=marked)


def read_range(
    spark: SparkSession,
    at: Place,
    span: IdRange,
    kinds: Sequence[str] | None = None,
    version: int | None = None,
    *,
    marked: bool = False,
) -> DataFrame:
    """Return the rows of an archive in a range of ids, as `read` does."""
    table = ArchiveTable(at)
    state = table.snapshot(version)
    check_schema(at, state)
    chosen = chosen_files(table, state, span, kinds)
    df = _marked(spark, at, chosen) if marked else read_files(spark, at, chosen)
    condition = span.condition()
    return df if condition is None else df.where(condition)


def chosen_files(
    table: ArchiveTable, state: ArchiveSnapshot, span: IdRange, kinds: Sequence[str] | None = None
) -> list[DataFile]:
    """Return a state's files that may hold rows of some kinds in a range of ids.

    Raises `UsageError` for an unknown kind, `NotFound` if files of an old version were deleted.
    """
    for kind in kinds or ():
        if kind not in schema.KINDS:
            raise UsageError(
                f"{kind[:40]!a} is not a kind of entry", hint=f"kinds: {', '.join(schema.KINDS)}"
            )
    chosen = [
        file
        for file in state.files.values()
        if (kinds is None or file.kind in kinds) and span.may_hold(file)
    ]
    newest = table.snapshot()
    if newest.version != state.version:
        _still_there(table.place, newest, state.version, chosen)
    return chosen


def _marked(spark: SparkSession, at: Place, files: Sequence[DataFile]) -> DataFrame:
    """Return the rows of some files, with a column that is true if compaction typed them."""
    raw: list[DataFile] = []
    typed: list[DataFile] = []
    either: list[DataFile] = []
    for file in files:
        wanted = TYPED.get(file.kind, ())
        (either if not wanted else typed if file.has_typed(wanted) else raw).append(file)
    # Avoid a second part, which needs a slower union.
    (typed if typed and not raw else raw).extend(either)
    parts = []
    if typed:
        parts.append(read_files(spark, at, typed).withColumn(COMPACTED, f.lit(True)))
    if raw or not typed:
        # Tell Spark that these columns are null: otherwise it reads each row, and evaluates an
        # expression that replaces a null once for each use.
        nulls = {name: f.lit(None).cast(type) for name, type in types().items()}
        parts.append(read_files(spark, at, raw).withColumns({**nulls, COMPACTED: f.lit(False)}))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def read_files(spark: SparkSession, at: Place, files: Iterable[DataFile]) -> DataFrame:
    """Return the rows of files of an archive, with the columns of `read`."""
    wanted = columns()
    names = [at.uri(file.path) for file in files]
    if not names:
        return spark.createDataFrame([], wanted)
    if len(names) > _FEW:
        # By default Spark lists the files by one task each, which takes ten times as long. The
        # setting stays, since Spark Connect lists the files only when the frame is used.
        spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", str(_LISTERS))
    reader = spark.read.schema(wanted).option("basePath", str(at))
    return reader.parquet(*literal(at, names)).select(*wanted.names)


def columns() -> StructType:
    """Return the columns of `read`: the schema's, the typed columns, and `date`."""
    named = (f"`{name}` {type}" for name, type in table.columns().items())
    return cast("StructType", StructType.fromDDL(", ".join(named)))


def check(path: str | os.PathLike[str] | Place, *, project: str | None = None) -> ArchiveSnapshot:
    """Return the newest state of an archive, and check that this version can read it.

    Raises `NotFound`, `ConfigError` if a newer AgentBus wrote it, `Refused` if it is not of `project`.
    """
    table = ArchiveTable(path if isinstance(path, Place) else place(path))
    state = table.snapshot()
    check_schema(table.place, state)
    if project is not None:
        table.check_project(state, project)
    return state


def check_schema(at: Place, state: ArchiveSnapshot) -> None:
    """Raise `ConfigError` if a newer AgentBus wrote files that this one would read only in part."""
    if state.schema > schema.VERSION:
        raise ConfigError(
            f"{at} holds rows of the schema {state.schema}, and this version of AgentBus knows"
            f" {schema.VERSION}",
            hint="pip install --upgrade agentbus-toolkit",
        )


def _still_there(at: Place, newest: ArchiveSnapshot, version: int, files: list[DataFile]) -> None:
    """Raise `NotFound` if files of an old version were deleted since compaction removed them."""
    names = [file.path for file in files if file.path not in newest.files]
    for size in at.sizes(names):
        if size is None:
            raise NotFound(
                f"version {version} of {at} is gone: its files were replaced and deleted",
                hint="read a newer version",
            )


def literal(at: Place, names: list[str]) -> list[str]:
    """Return names in a form that Spark reads literally, whatever characters they contain."""
    special = re.compile(r"([{}\[\]*?\\])")
    if special.search(str(at)) and ":" in str(at).partition("://")[2]:
        raise UsageError(
            f"Spark cannot read {at}: a colon and one of {{}}[]*?\\ are in its path",
            hint="rename the directory",
        )
    return [special.sub(r"\\\1", name) for name in names]


def _moment(ms: int) -> Column:
    return f.timestamp_millis(f.lit(min(ms, LAST_MS)))
