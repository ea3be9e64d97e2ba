"""Compares an archive, entry by entry, with the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as f

from agentbus.core.stream import position
from agentbus.pipeline.archives.file_selection import LAST_MS
from agentbus.pipeline.rows.decoding import ARCHIVE_ONLY
from agentbus.pipeline.rows.masking import NOTHING, Masking
from agentbus.pipeline.rows.schema import COLUMNS, GAP
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.bound_source import source
from agentbus.pipeline.source.epochs import Epoch
from agentbus.pipeline.source.planning import Head, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from agentbus.core.settings import Settings
    from agentbus.pipeline.archives.versions import ArchiveSnapshot
    from agentbus.store.steps import Op

# Maximum number of entries that are named per stream.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Differences:
    """Entries of a stream that only the server or only the archive has: number and first ids.

    `missing` entries are archived according to the log, but are not in the files as they are on the
    server. `gone` entries are in the files, cannot have been trimmed, and are not on the server.
    """

    missing: int = 0
    missing_ids: tuple[str, ...] = ()
    gone: int = 0
    gone_ids: tuple[str, ...] = ()


def differences(
    spark: SparkSession, settings: Settings, state: ArchiveSnapshot, rows: DataFrame
) -> dict[str, Differences]:
    """Return the differences of a state's streams from the server; `rows` are its files' rows."""
    if not state.positions:
        return {}
    with RangeReader(settings) as reader:
        before = reader.run(_look(reader, state))
        there = _there(spark, settings, state).persist()
        try:
            missing = _named(_missing(there, rows, state.masking))
            found = _gone(spark, before, there, rows).persist()
            try:
                gone = {}
                if found.count():
                    # Exclude entries that were trimmed during the comparison: read the heads again.
                    gone = _named(_since(spark, found, *reader.run(_now(reader, state))))
            finally:
                found.unpersist()
        finally:
            there.unpersist()
    none: tuple[int, tuple[str, ...]] = (0, ())
    return {
        name: Differences(*missing.get(name, none), *gone.get(name, none))
        for name in {*missing, *gone}
    }


def _there(spark: SparkSession, settings: Settings, state: ArchiveSnapshot) -> DataFrame:
    """Return the server's entries, and for each whether the log counts it as archived."""
    bound = source(settings)
    spark.dataSource.register(bound)
    entries = spark.read.format(bound.name()).load().where(f.col("kind") != GAP)
    entries = _marked(entries, state.masking)
    ends = {name: at.id for name, at in state.positions.items()}
    return entries.join(f.broadcast(_ids(spark, ends, "last")), "stream").withColumn(
        "archived", _numbers("id") <= f.col("last")
    )


def _missing(there: DataFrame, rows: DataFrame, masking: Masking) -> DataFrame:
    """Return entries on the server that are missing or different in the archive."""
    absent = there.where("archived").join(
        _marked(rows.where(f.col("kind") != GAP), masking), ["stream", "id", "mark"], "left_anti"
    )
    # A server that went back in time may again have entries that were counted as lost.
    return _outside(absent, rows, lost=True)


def _gone(
    spark: SparkSession, heads: Mapping[str, Head], there: DataFrame, rows: DataFrame
) -> DataFrame:
    """Return archived entries that are not on the server, but not trimmed by these heads."""
    kept = {name: _kept(head) for name, head in heads.items()}
    least = min((position(at)[0] for at in kept.values()), default=0)
    # Only a condition on the time lets Spark skip files.
    late = rows.where(f.col("time") >= f.timestamp_millis(f.lit(min(least, LAST_MS))))
    archived = late.where(f.col("kind") != GAP).select("stream", "id")
    may_be = archived.join(f.broadcast(_ids(spark, kept, "kept")), "stream")
    absent = may_be.where(_numbers("id") > f.col("kept")).join(
        there.select("stream", "id"), ["stream", "id"], "left_anti"
    )
    # Exclude entries in gaps that were recorded when the server went back and the archive
    # continued.
    return _outside(absent.select("stream", "id"), rows, lost=False)


def _look(reader: RangeReader, state: ArchiveSnapshot) -> Op[dict[str, Head]]:
    """Return the heads of the archived streams, except streams deleted and still empty."""
    heads = yield from planning.look(reader.scope, list(state.positions))
    return {name: head for name, head in heads.items() if head.added}


def _now(
    reader: RangeReader, state: ArchiveSnapshot
) -> Op[tuple[dict[str, Head], dict[str, Epoch]]]:
    """Return the current heads, and the streams that went back in time since being archived."""
    positions = {name: ReadPosition(at.id, at.added) for name, at in state.positions.items()}
    heads = yield from _look(reader, state)
    _, back = yield from epochs.continued(
        reader.scope, heads, positions, counts=lambda _name: True, may=lambda _name: True
    )
    return heads, back


def _since(
    spark: SparkSession, gone: DataFrame, heads: Mapping[str, Head], back: Mapping[str, Epoch]
) -> DataFrame:
    """Return the entries that, by these newer heads, were neither trimmed nor deleted singly."""
    # Single deletions may have removed any entry up to the highest deleted id, unless the stream
    # went back in time.
    least = {
        name: max(_kept(head), _kept(head) if name in back else head.deleted, key=position)
        for name, head in heads.items()
    }
    found = gone.join(f.broadcast(_ids(spark, least, "least")), "stream")
    return found.where(_numbers("id") > f.col("least"))


def _kept(head: Head) -> str:
    """Return the id after which no entry of a stream was trimmed."""
    return head.last if head.first is None else planning.before(head.first)


def _outside(entries: DataFrame, rows: DataFrame, *, lost: bool) -> DataFrame:
    """Return the entries outside of gaps, of lost entries or where a server went back."""
    noted = f.map_contains_key("fields", f.lit(ARCHIVE_ONLY))
    known = (f.col("kind") == GAP) & f.map_contains_key("fields", f.lit("after"))
    gaps = rows.where(known & (~noted if lost else noted)).select(
        f.col("stream").alias("of"),
        _numbers("id").alias("until"),
        _numbers(f.element_at("fields", "after")).alias("after"),
    )
    inside = (
        (f.col("stream") == f.col("of"))
        & (_numbers("id") > f.col("after"))
        & (_numbers("id") <= f.col("until"))
    )
    return entries.join(gaps, inside, "left_anti")


def _named(entries: DataFrame) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return the number of entries of each stream, and the first ids."""
    stream = Window.partitionBy("stream")
    numbered = entries.select(
        "stream",
        "id",
        f.count("*").over(stream).alias("n"),
        f.row_number().over(stream.orderBy(_numbers("id"))).alias("at"),
    )
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for row in numbered.where(f.col("at") <= _NAMED).orderBy("stream", "at").collect():
        _, ids = found.get(row["stream"], (0, ()))
        found[row["stream"]] = row["n"], (*ids, row["id"])
    return found


def _ids(spark: SparkSession, ids: Mapping[str, str], name: str) -> DataFrame:
    """Return one id for each stream, as its two numbers."""
    frame = spark.createDataFrame(list(ids.items()), "stream string, id string")
    return frame.select("stream", _numbers("id").alias(name))


def _numbers(id: str | Column) -> Column:
    """Return an id as its two numbers, each of which may exceed a bigint."""
    parts = (f.substring_index(id, "-", at).cast("decimal(20)") for at in (1, -1))
    return f.struct(*(part.alias(name) for part, name in zip(parts, ("ms", "seq"), strict=True)))


def _marked(rows: DataFrame, masking: Masking) -> DataFrame:
    """Return each row's stream and id, and a hash of all of its content but what is masked."""
    if masking != NOTHING:
        # Functions on whole batches would need pandas.
        kind = "payload string, fields map<string,string>"
        blanked = f.udf(masking.blanked, kind, useArrow=False)("kind", "payload", "fields")
        rows = rows.withColumn("blanked", blanked).withColumns(
            {name: f.col(f"blanked.{name}") for name in ("payload", "fields")}
        )
    held: list[Column] = [
        f.array_sort(f.map_entries("fields")) if name == "fields" else f.col(name)
        for name in COLUMNS
        if name != "version"
    ]
    return rows.select("stream", "id", f.xxhash64(*held).alias("mark"))
