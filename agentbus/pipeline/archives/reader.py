"""Reads an archive with Spark: the rows of its committed files, each exactly once."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from agentbus.core.errors import UsageError
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.file_selection import (
    LAST_MS,
    LAST_SEQ,
    IdRange,
    between,
    check_schema,
    chosen_files,
)
from agentbus.pipeline.archives.location import Location, place
from agentbus.pipeline.archives.places import Place
from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile
from agentbus.pipeline.rows import table
from agentbus.pipeline.rows.typed_columns import COMPACTED, TYPED, types
from agentbus.pipeline.source.archive_reader import files_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spark's limit of files that it lists without tasks, and the number of tasks for more files.
_FEW = 32
_LISTERS = 16


def read(
    spark: SparkSession,
    path: Location,
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
    at = place(path)
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
    condition = _condition(span)
    return df if condition is None else df.where(condition)


def _condition(span: IdRange) -> Column | None:
    """Return the condition for rows in this range, in a form that uses Parquet's statistics."""
    at, seq = f.col("time"), f.col("seq")
    held: list[Column] = []
    if span.start is not None:
        moment, first = _moment(span.start[0]), min(span.start[1], LAST_SEQ)
        held.append(at >= moment)
        if first:
            held.append((at > moment) | (seq >= f.lit(first)))
    if span.end is not None:
        moment, last = _moment(span.end[0]), min(span.end[1], LAST_SEQ)
        if last:
            held += [at <= moment, (at < moment) | (seq < f.lit(last))]
        else:
            held.append(at < moment)
    return functools.reduce(operator.and_, held) if held else None


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
    if at.target.scheme != "file":
        # Spark reads no bucket without jars of Hadoop: its tasks read the files by Arrow.
        bound = files_source(at.target, list(files))
        spark.dataSource.register(bound)
        return spark.read.format(bound.name()).load()
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


def check(path: Location, *, project: str | None = None) -> ArchiveSnapshot:
    """Return the newest state of an archive, and check that this version can read it.

    Raises `NotFound`, `ConfigError` if a newer AgentBus wrote it, `Refused` if it is not of `project`.
    """
    table = ArchiveTable(place(path))
    state = table.snapshot()
    check_schema(table.place, state)
    if project is not None:
        table.check_project(state, project)
    return state


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
