"""Tasks: how many were done, how long they waited and ran, and what became of those that failed.

The figures are those that workers write to the metrics stream; tasks that a program fetches by hand are
counted nowhere but in the queue's stream and among the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from agentbus.pipeline.reports.report import (
    LENGTHS,
    Chart,
    Given,
    Report,
    Table,
    of_kind,
    union,
)
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
    """Return by queue and group tasks, runs, every event, the attempts a task, and the shares that fail.

    `tasks` were finished, well or not: processed or buried. A task may have several `runs`: `attempts` is
    their ratio. `retried_share` is of runs, `dead_share` of tasks. What publishers were refused has no
    group.
    """
    runs = plus("processed", "failed")
    finished = plus("processed", "dead")
    return (
        worked(rows, given)
        .groupBy(*GROUP)
        .agg(*(total(event).alias(event) for event in EVENTS), F.sum("busy_ms").alias("busy_ms"))
        .select(
            *GROUP,
            finished.alias("tasks"),
            runs.alias("runs"),
            *(F.col(event).alias(_plain(event)) for event in EVENTS),
            share(runs, finished).alias("attempts"),
            share("retried", runs).alias("retried_share"),
            share("dead", finished).alias("dead_share"),
            "busy_ms",
        )
        .orderBy(F.desc("processed"), "queue", "group")
    )


def timings(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and group how long tasks ran and waited (`what`): mean and percentiles.

    `tasks` is how many were delivered, each counted once, and `runs` how often they ran. Each run takes its
    time, and each task waits once.
    """
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
            F.col("tasks").alias("number"),
            share(what, "tasks").alias("mean_ms"),
            *("p50_ms", "p90_ms", "p99_ms"),
        )
        for what, counted in (("running", "ran"), ("waiting", "waited"))
    )
    # What waited was delivered for the first time; what ran may have run before.
    group, none = Window.partitionBy(*GROUP), F.lit(0).cast("bigint")
    counts = {
        name: F.coalesce(F.max(F.when(F.col("what") == what, F.col("number"))).over(group), none)
        for name, what in (("tasks", "waiting"), ("runs", "running"))
    }
    return (
        both.withColumns(counts)
        .select(*GROUP, "what", "tasks", "runs", "mean_ms", "p50_ms", "p90_ms", "p99_ms")
        .orderBy("what", F.desc("p99_ms"), "queue", "group")
    )


def throughput(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and time (second to day, as the span is long) what came and what was done."""
    seconds = seconds_of(given)
    figures = ("received", "processed", "failed", "retried", "dead")
    done = worked(rows, given).select("queue", "slot", *figures, "busy_ms")
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
        .withColumn("processed_rate", F.col("processed") / F.lit(float(LENGTHS[given.span.bucket])))
        .orderBy("time", "queue")
    )


def causes(rows: DataFrame, given: Given) -> DataFrame:
    """Return dead letters by queue, group and cause: how many, of how many attempts, and the last one.

    `cause` is the exception's class, or what the error says up to a colon. `share` is of the group's
    dead letters. The ten most frequent causes of each group are included.
    """
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
            Chart("stacked", "queue", ("processed", "dead")),
            note="The chart shows tasks. Runs are counted apart: a task that is tried again runs several"
            " times, and 'attempts' says how often. Retries are a share of runs, dead letters of tasks.",
        ),
        Table(
            "throughput",
            f"By {given.span.bucket}",
            throughput(rows, given),
            Chart("line", "time", "processed", series="queue"),
            note="The chart shows tasks that were processed; received and failed are runs.",
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
