"""What the reports about work start from: entries and metrics, summed up once by narrow slots of time.

Each frame is far smaller than the rows that it is made of, and several reports share it. Times are cut
by arithmetic on the clock of UTC, so that neither zones nor daylight saving shift a slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from agentbus.pipeline.reports.report import LENGTHS, Given, of_kind, union
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import COUNTERS, STREAM_QUEUE
from agentbus.workers.metrics import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

# The columns that say what became of tasks.
EVENTS = tuple(COUNTERS.values())
HOUR = 3600
GROUP = ("queue", "group")
# The most rows of a table by time.
MOMENTS = 20_000
# How many seconds a slot has, by how finely the report cuts time.
_SLOTS = {"second": 1, "minute": 60, "hour": 300, "day": 900}
# The bound of the last bucket stands for all that took longer.
_LAST = len(BOUNDS)
_LONGEST_MS = BOUNDS[-1] * 1000
_METRICS_OF = (*GROUP, "worker")


def seconds_of(given: Given) -> int:
    """Return how many seconds a slot has."""
    return _SLOTS[given.span.bucket]


def slot(seconds: int) -> Column:
    """Return the number of the slot that `time` falls into, counted from 1970."""
    return F.expr(f"unix_micros(time) div {seconds * 1_000_000}L")


def start_of(slots: str, seconds: int) -> Column:
    """Return when a slot begins."""
    return F.timestamp_seconds(F.col(slots) * F.lit(seconds))


def named(column: str) -> Column:
    """Return a name, null if it is empty."""
    return F.nullif(F.col(column), F.lit(""))


def total(column: str | Column) -> Column:
    """Return the sum of counts: 0 if there are none, null if it is beyond 64 bits."""
    column = F.col(column) if isinstance(column, str) else column
    return F.try_sum(F.coalesce(column, F.lit(0).cast("bigint")))


def share(part: str | Column, whole: str | Column) -> Column:
    """Return a part of a whole, null of nothing."""
    part, whole = (F.col(one) if isinstance(one, str) else one for one in (part, whole))
    return F.try_divide(part.cast("double"), whole.cast("double"))


def plus(*columns: str) -> Column:
    """Return the sum of counts of one row, null if it is beyond 64 bits."""
    first, *rest = columns
    added = F.col(first)
    for column in rest:
        added = F.try_add(added, F.col(column))
    return added


def _metrics(rows: DataFrame) -> DataFrame:
    """The metrics of workers and publishers; entries without a queue are of other programs."""
    told = of_kind(rows, schema.METRICS)
    return told.where(named("queue").isNotNull()).withColumns(
        {"group": named("group_"), "worker": named("worker"), "agent": named("agent")}
    )


def worked(rows: DataFrame, given: Given) -> DataFrame:
    """Return metrics by queue, group, worker, agent and slot: events, busy_ms, waited_ms, first, last."""
    seconds = seconds_of(given)
    return given.once(
        "worked",
        lambda: (
            _metrics(rows)
            # The agent is a key, since of a name Spark finds the greatest only by sorting all rows.
            .groupBy(*_METRICS_OF, "agent", slot(seconds).alias("slot"))
            .agg(
                *(total(event).alias(event) for event in EVENTS),
                *(F.sum(F.coalesce(ms, F.lit(0.0))).alias(ms) for ms in ("busy_ms", "waited_ms")),
                F.min("time").alias("first"),
                F.max("time").alias("last"),
            )
        ),
    )


def spread(rows: DataFrame, given: Given) -> DataFrame:
    """Return how long tasks ran and waited: for queue, group, worker and bucket how many (ran, waited)."""

    def make() -> DataFrame:
        none = F.array().cast("array<bigint>")
        counts = F.arrays_zip(
            F.coalesce("ran_counts", none).alias("ran"),
            F.coalesce("waited_counts", none).alias("waited"),
        )
        each = _metrics(rows).select(*_METRICS_OF, F.posexplode(counts).alias("bucket", "counts"))
        return each.groupBy(*_METRICS_OF, "bucket").agg(
            *(
                F.sum(F.coalesce(F.col(f"counts.{name}"), F.lit(0)).cast("double")).alias(name)
                for name in ("ran", "waited")
            )
        )

    return given.once("spread", make)


def durations(rows: DataFrame, given: Given, keys: Sequence[str], what: str) -> DataFrame:
    """Return by these keys the number of tasks, p50_ms, p90_ms and p99_ms of `ran` or `waited`.

    A percentile is interpolated in its bucket, as `agentbus.workers.metrics.Histogram` does it.
    """
    counts = spread(rows, given).groupBy(*keys, "bucket").agg(F.sum(what).alias("number"))
    cells = F.array_sort(F.collect_list(F.struct("bucket", "number")))
    return (
        counts.where(F.col("number") > 0)
        .groupBy(*keys)
        .agg(cells.alias("cells"), F.sum("number").alias("all"))
        .select(
            *keys,
            F.expr("try_cast(all as bigint)").alias("tasks"),
            *(_percentile(share).alias(f"p{share * 100:.0f}_ms") for share in (0.5, 0.9, 0.99)),
        )
    )


def _percentile(share: float) -> Column:
    """The duration that this share of `cells` did not exceed, in milliseconds."""
    inside = (
        f"if(x.bucket >= {_LAST}, {_LONGEST_MS}D, "
        f"if(x.bucket = 0, 0D, power(2D, x.bucket - 1))"
        f" + if(x.bucket = 0, 1D, power(2D, x.bucket - 1))"
        f" * try_divide({share}D * all - s.below, x.number))"
    )
    return F.expr(
        "aggregate(cells, named_struct('below', 0D, 'found', cast(null as double)),"
        " (s, x) -> named_struct('below', s.below + x.number, 'found', coalesce(s.found,"
        f" if(s.below + x.number >= {share}D * all, {inside}, null))),"
        f" s -> coalesce(s.found, {_LONGEST_MS}D))"
    )


def arrived(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and slot how many tasks came into the queue's streams, with those lost in gaps."""
    seconds = seconds_of(given)

    def make() -> DataFrame:
        tasks = (
            rows.where((F.col("kind") == schema.QUEUE) & named("queue").isNotNull())
            .groupBy("queue", slot(seconds).alias("slot"))
            .agg(F.count("*").alias("published"))
        )
        # A gap names only the stream.
        gaps = (
            rows.where((F.col("kind") == schema.GAP) & F.col("stream").startswith("q:"))
            .select(F.nullif(F.expr(STREAM_QUEUE), F.lit("")).alias("queue"), "time", "lost")
            .where("queue is not null")
            .groupBy("queue", slot(seconds).alias("slot"))
            .agg(total("lost").alias("published"))
        )
        return (
            union((tasks, gaps))
            .where("slot is not null")
            .groupBy("queue", "slot")
            .agg(total("published").alias("published"))
        )

    return given.once("arrived", make)


def entry_seconds(given: Given) -> int:
    """Return how many seconds a slot of `entered` has: a second, a minute or an hour."""
    return min(LENGTHS[given.span.bucket], HOUR)


def entered(rows: DataFrame, given: Given) -> DataFrame:
    """Return messages and tasks by kind, queue, topic, agent, told and slot: entries, bytes of payload.

    `told` is true for notices of the bus on the channel. Slots are of `entry_seconds`.
    """

    def make() -> DataFrame:
        told = (F.col("kind") == schema.CHANNEL) & F.col("event").isNotNull()
        names = ("kind", "queue", "topic", "agent")
        both = union(
            of_kind(rows, kind).select(*names, told.alias("told"), "time", "bytes")
            for kind in (schema.CHANNEL, schema.QUEUE)
        )
        at = slot(entry_seconds(given)).alias("slot")
        return both.groupBy(*names, "told", at).agg(
            F.count("*").alias("entries"), total("bytes").alias("bytes")
        )

    return given.once("entered", make)
