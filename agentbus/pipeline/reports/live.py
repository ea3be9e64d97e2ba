"""The live report: shows continuously how much is written in each time window.

Windows are kept in memory until the watermark has passed them: an entry that is late by no more
than the watermark is still counted. Memory is therefore bounded by the number of names in a few
windows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from agentbus.core.errors import UsageError
from agentbus.pipeline.reports.running import Filled
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import TYPED
from agentbus.pipeline.source.bound_source import source
from agentbus.pipeline.spark.errors import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from agentbus.core.settings import Settings

WINDOW, WATERMARK, EVERY = "1 minute", "2 minutes", "2 seconds"
# The default age of the first entries.
SINCE = "5m"
# Seconds between two checks whether the query has ended.
_GLANCE = 0.2
_KEYS = ("kind", "stream", "queue", "topic", "agent")
_EVENTS = ("processed", "failed", "dead")


def windows(rows: DataFrame, window: str = WINDOW, watermark: str = WATERMARK) -> DataFrame:
    """Return the numbers of entries, bytes and outcomes by window, kind and names.

    `rows` may be a stream, and what is returned then is one, too. Columns: time (the window's start),
    the keys, entries, bytes (of payloads), processed, failed and dead (as workers tell it in the
    stream of metrics), lost (entries that were gone before they were read). Rows without a time are
    in no window.
    """
    known = {**TYPED[schema.QUEUE], **TYPED[schema.METRICS]}
    events = [F.when(F.col("kind") == schema.METRICS, F.expr(known[one])) for one in _EVENTS]
    return (
        rows.withWatermark("time", watermark)
        .groupBy(F.window("time", window).alias("window"), *_KEYS)
        .agg(
            F.count_if(F.col("kind") != schema.GAP).alias("entries"),
            _total(F.expr(known["bytes"])).alias("bytes"),
            *(_total(number).alias(event) for event, number in zip(_EVENTS, events, strict=True)),
            _total(F.col("lost")).alias("lost"),
        )
        .select(
            F.col("window.start").alias("time"),
            *_KEYS,
            *("entries", "bytes", *_EVENTS, "lost"),
        )
    )


def _total(column: Column) -> Column:
    """Return the sum of counts: 0 without counts, null if it exceeds 64 bits."""
    return F.try_sum(F.coalesce(column, F.lit(0).cast("bigint")))


def updates(frame: DataFrame, tell: Callable[[pa.Table], None], every: str | None = EVERY) -> None:
    """Run a stream, and call `tell` with the windows and figures that each batch changed.

    `every` is the interval of batches; None: process all existing entries, and end. A slow `tell` slows the
    stream down; one that raises ends it. Raises what Spark's errors mean; a `UsageError` through Spark
    Connect, where functions run on the server.
    """
    if frame.sparkSession.__class__.__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "live reports do not run through Spark Connect",
            hint="leave out remote; master takes a cluster",
            shell_hint="leave out --remote; --master takes a cluster",
        )
    failed: list[Exception] = []
    over = threading.Event()

    def hand_over(batch: DataFrame, _number: int) -> None:
        try:
            if not over.is_set() and (found := batch.toArrow()).num_rows:
                tell(found)
        except Exception as error:  # noqa: BLE001 (raised here, it would be the traceback of a callback)
            failed.append(error)
            over.set()

    # By default, Spark keeps the directory of a query's offsets if the query fails.
    frame.sparkSession.conf.set("spark.sql.streaming.forceDeleteTempCheckpointLocation", "true")
    writer = frame.writeStream.outputMode("update").foreachBatch(hand_over)
    writer = (
        writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    )
    try:
        query = writer.start()
        try:
            while query.isActive and not over.wait(_GLANCE):
                continue
            failure: Any = failed[0] if failed else query.exception()
            if failure is not None:
                raise failure
        finally:
            over.set()
            query.stop()
    except (PySparkException, Py4JError) as error:
        raise told(error) from error


def watch(
    spark: SparkSession,
    settings: Settings,
    *,
    since: str | None = None,
    tell: Callable[[Filled], None],
) -> None:
    """Pass a bus's windows to `tell` as they change, newest first, until the stream ends.

    It begins with the entries of the last five minutes, or `since`. A window is passed again when it
    has changed.
    """
    bound = source(settings)
    spark.dataSource.register(bound)
    rows = spark.readStream.format(bound.name()).option("from", since or SINCE).load()
    updates(windows(rows), lambda table: tell(_filled(table)))


def _filled(table: pa.Table) -> Filled:
    ordered = table.sort_by([("time", "descending"), ("entries", "descending")])
    return Filled(
        "live", "windows", "What happens now", tuple(ordered.column_names), ordered.to_pylist()
    )
