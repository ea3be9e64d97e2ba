"""Tasks: how many were done, how long they waited and ran, and what became of those that failed.

The figures are those that workers write to the metrics stream; tasks that a program fetches by hand are
counted nowhere but in the queue's stream and among the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from agentbus.pipeline.reports.report import Chart, Given, Report, Table, of_kind, union
from agentbus.pipeline.reports.work import (
    EVENTS,
    GROUP,
    MOMENTS,
    arrived,
    durations,
    named,
    plus,
    seconds_of,
    share,
    start_of,
    total,
    worked,
)
from agentbus.pipeline.rows import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# How many causes of a queue are shown.
_CAUSES = 10


def outcomes(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and group every event, the attempts a task, and the shares that fail.

    `attempts` is runs for each task that was finished, well or not; `retried_share` is of runs,
    `dead_share` of finished tasks. What publishers were refused has no group.
    """
    runs = plus("processed", "failed")
    finished = plus("processed", "dead")
    return (
        worked(rows, given)
        .groupBy(*GROUP)
        .agg(*(total(event).alias(event) for event in EVENTS), F.sum("busy_ms").alias("busy_ms"))
        .select(
            *GROUP,
            *(F.col(event).alias(_plain(event)) for event in EVENTS),
            share(runs, finished).alias("attempts"),
            share("retried", runs).alias("retried_share"),
            share("dead", finished).alias("dead_share"),
            "busy_ms",
        )
        .orderBy(F.desc("processed"), "queue", "group")
    )


def timings(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and group how long tasks ran and waited (`what`): mean and percentiles."""
    sums = (
        worked(rows, given)
        .groupBy(*GROUP)
        .agg(F.sum("busy_ms").alias("running"), F.sum("waited_ms").alias("waiting"))
    )
    sums = sums.withColumnsRenamed({"queue": "q", "group": "g"})
    same = (F.col("queue") == F.col("q")) & F.col("group").eqNullSafe(F.col("g"))
    both = union(
        durations(rows, given, GROUP, counted)
        .join(sums, same)
        .select(
            *GROUP,
            F.lit(what).alias("what"),
            "tasks",
            share(what, "tasks").alias("mean_ms"),
            *("p50_ms", "p90_ms", "p99_ms"),
        )
        for what, counted in (("running", "ran"), ("waiting", "waited"))
    )
    return both.orderBy("what", F.desc("p99_ms"), "queue", "group")


def throughput(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and time (minute, hour or day, as the span is long) what came and what was done."""
    seconds = seconds_of(given)
    figures = ("received", "processed", "failed", "retried", "dead")
    done = worked(rows, given).select("queue", "slot", *figures, "busy_ms")
    length = {"minute": 60, "hour": 3600, "day": 86400}[given.span.bucket]
    return (
        union((done, arrived(rows, given)))
        .withColumn("at", start_of("slot", seconds))
        .where("at is not null")
        .groupBy("queue", given.moment("at"))
        .agg(
            total("published").alias("published"),
            *(total(figure).alias(figure) for figure in figures),
            F.sum(F.coalesce("busy_ms", F.lit(0.0))).alias("busy_ms"),
        )
        .withColumn("processed_rate", F.col("processed") / F.lit(float(length)))
        .orderBy("time", "queue")
    )


def causes(rows: DataFrame, given: Given) -> DataFrame:
    """Return dead letters by queue, group and cause: how many, of how many attempts, and the last one.

    `cause` is the exception's class, or what the error says up to a colon. `share` is of the group's
    dead letters. The ten most frequent causes of each group are included.
    """
    from pyspark.sql import Window

    letters = of_kind(rows, schema.DEAD_LETTER).where(named("queue").isNotNull())
    latest = F.struct("time", "seq", "error")
    group = Window.partitionBy("queue", "group")
    counted = letters.groupBy("queue", named("group_").alias("group"), F.col("error_kind")).agg(
        F.count("*").alias("dead_letters"),
        F.avg("attempts").alias("attempts"),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.max(latest)["error"].alias("latest_error"),
    )
    place = F.row_number().over(group.orderBy(F.desc("dead_letters"), "error_kind"))
    return (
        counted.withColumns(
            {
                "place": place,
                "dead_letters_share": share("dead_letters", F.sum("dead_letters").over(group)),
            }
        )
        .where(F.col("place") <= _CAUSES)
        .select(
            "queue",
            "group",
            F.col("error_kind").alias("cause"),
            *("dead_letters", "dead_letters_share", "attempts", "first", "last"),
            F.left("latest_error", F.lit(200)).alias("latest_error"),
        )
        .orderBy(F.desc("dead_letters"), "queue", "group", "cause")
    )


def _plain(event: str) -> str:
    return event.removesuffix("_tasks")


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the tables of tasks."""
    return (
        Table(
            "outcomes",
            "What became of tasks",
            outcomes(rows, given),
            Chart("stacked", "queue", ("processed", "retried", "dead")),
            note="Attempts are runs for each task that was finished; retries a share of runs, dead letters"
            " of finished tasks.",
        ),
        Table(
            "throughput",
            f"By {given.span.bucket}",
            throughput(rows, given),
            Chart("line", "time", "processed", series="queue"),
            top=MOMENTS,
        ),
        Table(
            "timings",
            "How long tasks ran and waited",
            timings(rows, given),
            Chart("bar", "queue", ("p50_ms", "p90_ms", "p99_ms"), series="what", unit="ms"),
            note="Percentiles are right within a factor of 2: the bounds of workers' buckets double.",
        ),
        Table(
            "causes",
            "Dead letters by cause",
            causes(rows, given),
            Chart("bar", "cause", "dead_letters", series="queue"),
        ),
    )


REPORT = Report(
    "tasks",
    "Tasks",
    "How many tasks were done, how long they waited and ran, how many attempts they took, and why the"
    " others died. Workers count this themselves; tasks that are fetched by hand are not among them.",
    build,
    "No task was published, run or buried in this time.",
)
