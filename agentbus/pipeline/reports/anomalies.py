"""Anomalies: hours in which a queue or a topic was unlike the same hour of earlier days.

Each full hour is compared with the same hour (UTC) of the days before it: their median, and the
median distance from it, which a single odd day does not move. An hour without rows counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from agentbus.pipeline.reports.report import Chart, Given, Report, Table, union
from agentbus.pipeline.reports.work import (
    HOUR,
    entered,
    entry_seconds,
    named,
    seconds_of,
    start_of,
    total,
    worked,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The fewest and the most earlier days by which an hour is judged.
LEAST_DAYS, MOST_DAYS = 3, 28
# How many deviations from the median are odd.
ODD = 3.5
# A median distance times this is the standard deviation of what is spread normally.
_NORMAL = 1.4826
# How many queues and topics are examined: those with the most entries.
MOST = 500


def hourly(rows: DataFrame, given: Given) -> DataFrame:
    """Return by what, name, figure and hour the number of entries, and of tasks done and failed."""
    entries = entered(rows, given)
    parts = [
        entries.select(
            F.lit(what).alias("what"),
            named(what).alias("name"),
            F.lit("entries").alias("figure"),
            F.expr(f"slot div {HOUR // entry_seconds(given)}L").alias("hour"),
            F.col("entries").alias("number"),
        )
        for what in ("queue", "topic")
    ]
    in_hour = HOUR // seconds_of(given)
    parts += [
        worked(rows, given).select(
            F.lit("queue").alias("what"),
            F.col("queue").alias("name"),
            F.lit(figure).alias("figure"),
            F.expr(f"slot div {in_hour}L").alias("hour"),
            F.col(figure).alias("number"),
        )
        for figure in ("processed", "failed")
    ]
    return (
        union(parts)
        .where("name is not null and hour is not null")
        .groupBy("what", "name", "figure", "hour")
        .agg(total("number").alias("number"))
    )


def judged(rows: DataFrame, given: Given) -> DataFrame:
    """Return every full hour that has three earlier days, with what was expected of it, and its score.

    `expected` is the median of the same hour of the up to 28 days before; `low` and `high` are how far
    3.5 deviations reach. A deviation is 1.4826 times the median distance from the median, but no less
    than the root of the median (what counts vary by chance) and than 1.

    The hours of the first and the last entry are left out, since they may be cut; a name's days begin
    with its first entry.
    """
    counts = given.once("hourly", lambda: hourly(rows, given))
    bounds = counts.agg(F.min("hour").alias("first_hour"), F.max("hour").alias("last_hour"))
    keys = ("what", "name", "figure")
    frequent = Window.partitionBy("what", "figure").orderBy(F.desc("all"), "name")
    series = (
        counts.groupBy(*keys)
        .agg(F.min("hour").alias("since"), F.sum(F.col("number").cast("double")).alias("all"))
        .withColumn("place", F.row_number().over(frequent))
        .where(F.col("place") <= MOST)
        .crossJoin(F.broadcast(bounds))
        .withColumn("since", F.greatest(F.col("since"), F.col("first_hour") + 1))
        .where("since < last_hour")
        .select(*keys, F.explode(F.expr("sequence(since, last_hour - 1)")).alias("hour"))
    )
    same_hour = (
        Window.partitionBy(*keys, F.expr("hour % 24")).orderBy("hour").rowsBetween(-MOST_DAYS, -1)
    )
    filled = series.join(counts, [*keys, "hour"], "left").withColumn(
        "number", F.coalesce("number", F.lit(0)).cast("double")
    )
    spread = f"greatest({_NORMAL}D * distance, sqrt(expected), 1D)"
    return (
        filled.withColumn("before", F.array_sort(F.collect_list("number").over(same_hour)))
        .where(F.size("before") >= LEAST_DAYS)
        .withColumn("expected", F.expr(_middle("before")))
        .withColumn(
            "distances", F.expr("array_sort(transform(before, one -> abs(one - expected)))")
        )
        .withColumn("distance", F.expr(_middle("distances")))
        .withColumn("deviation", F.expr(spread))
        .select(
            *keys,
            start_of("hour", HOUR).alias("time"),
            F.expr("try_cast(number as bigint)").alias("number"),
            "expected",
            F.greatest(F.col("expected") - ODD * F.col("deviation"), F.lit(0.0)).alias("low"),
            (F.col("expected") + ODD * F.col("deviation")).alias("high"),
            ((F.col("number") - F.col("expected")) / F.col("deviation")).alias("score"),
            F.size("before").alias("days"),
        )
    )


def _middle(ordered: str) -> str:
    """The median of a list in order: the one in the middle, or halfway between the two."""
    # Of an empty list both are null; Spark may look before it has filtered.
    return (
        f"(get({ordered}, cast((size({ordered}) - 1) div 2 as int))"
        f" + get({ordered}, cast(size({ordered}) div 2 as int))) / 2D"
    )


def odd(rows: DataFrame, given: Given) -> DataFrame:
    """Return the hours that were odd, the oddest first; `direction` is `more` or `less`."""
    return (
        judged(rows, given)
        .where(F.abs("score") > ODD)
        .withColumn("direction", F.when(F.col("score") > 0, "more").otherwise("less"))
        .select(
            *("what", "name", "figure", "time", "number", "direction"),
            *("expected", "low", "high", "score", "days"),
        )
        .orderBy(F.desc(F.abs("score")), "time", "what", "name", "figure")
    )


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the table of odd hours."""
    return (
        Table(
            "hours",
            "Odd hours",
            odd(rows, given),
            Chart("line", "time", "score", series=("what", "name", "figure"), bucket="hour"),
            note="Each full hour against the same hour (UTC) of up to 28 earlier days, at least 3. A score"
            f" beyond {ODD} deviations from their median is odd.",
        ),
    )


REPORT = Report(
    "anomalies",
    "Anomalies",
    "In which hours a queue or a topic had far more or fewer entries, or a queue's workers did or"
    " failed far more or fewer tasks, than in the same hour of earlier days.",
    build,
    "No hour was unlike the same hour of earlier days, or fewer than 3 earlier days are known.",
)
