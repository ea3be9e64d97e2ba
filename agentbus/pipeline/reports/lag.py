"""Lag: how far consumers were behind what was published, and which workers vanished.

Published tasks are counted in the archive, and finished ones by workers: both exact. How
much waited when the rows begin is not known; it is inferred from the lowest point. That a worker
vanished is inferred, too: it held tasks and told nothing more, while others went on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from agentbus.pipeline.reports.report import LENGTHS, Chart, Given, Report, Table, union
from agentbus.pipeline.reports.work import (
    GROUP,
    MOMENTS,
    arrived,
    plus,
    seconds_of,
    start_of,
    total,
    worked,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A worker that held tasks and wrote no metrics for so long, while others did, is taken for gone. A
# living one may be silent as long as a task of its runs: only when it is done is something to tell.
SILENT_SECONDS = 300
_SETTLED = ("processed", "dead", "lost_tasks")


def levels(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue, group and slot: published, settled, lag at its end, and the backlog at the start.

    Slots in which tasks arrived or were done are included, and the first and the last of the span. A queue
    whose groups have no metrics has the group null, of which nothing is settled. `backlog` is how many
    tasks must have waited before the first row, since more were settled than had arrived: a lower bound.
    """
    seconds = seconds_of(given)

    def make() -> DataFrame:
        done = worked(rows, given).where("`group` is not null and slot is not null")
        settled = done.groupBy(*GROUP, "slot").agg(
            *(total(event).alias(event) for event in _SETTLED)
        )
        groups = settled.select(*GROUP).distinct()
        came = arrived(rows, given).join(groups, "queue", "left")
        settled = settled.select(*GROUP, "slot", plus(*_SETTLED).alias("settled"))
        so_far = Window.partitionBy(*GROUP).orderBy("slot")
        whole = Window.partitionBy(*GROUP)
        # A lag stands from the beginning, and to the end, also where nothing comes or is done then.
        ends = [int(at.timestamp()) // seconds for at in (given.span.first, given.span.last) if at]
        none = F.lit(None).cast("bigint")
        each = F.array(
            F.struct("slot", "published", "settled"),
            *(
                F.struct(
                    F.lit(end).cast("bigint").alias("slot"),
                    none.alias("published"),
                    none.alias("settled"),
                )
                for end in ends
            ),
        )
        return (
            union((came, settled))
            .select(*GROUP, F.inline(each))
            .groupBy(*GROUP, "slot")
            .agg(total("published").alias("published"), total("settled").alias("settled"))
            .withColumns(
                {
                    "came": F.try_sum("published").over(so_far),
                    "gone": F.try_sum("settled").over(so_far),
                }
            )
            .withColumn("ahead", F.try_subtract("came", "gone"))
            .withColumn("backlog", F.greatest(-F.min("ahead").over(whole), F.lit(0)))
            .withColumn("lag", F.try_add("ahead", "backlog"))
            .select(*GROUP, "slot", "published", "settled", "came", "gone", "backlog", "lag")
        )

    return given.once("levels", make)


def groups(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue and group how far it was behind at the end, and at its worst.

    `behind_ms` is the age of the oldest task that is still to be done, to a slot, if they are done
    in the order in which they came.
    """
    seconds = seconds_of(given)
    whole = Window.partitionBy(*GROUP)
    found = levels(rows, given)
    end = found.agg(F.max("slot").alias("end"))
    waiting = F.try_add("came", "backlog") > F.max("gone").over(whole)
    marked = found.withColumn("oldest", F.when(waiting, F.col("slot")))
    return (
        marked.groupBy(*GROUP)
        .agg(
            total("published").alias("published"),
            total("settled").alias("settled"),
            F.max("backlog").alias("backlog_before"),
            F.max_by("lag", "slot").alias("lag"),
            F.max("lag").alias("highest"),
            F.max(F.struct("lag", (-F.col("slot")).alias("at")))["at"].alias("at"),
            F.min("oldest").alias("oldest"),
        )
        .crossJoin(end)
        .select(
            *(*GROUP, "published", "settled", "backlog_before", "lag"),
            ((F.col("end") + 1 - F.col("oldest")) * F.lit(seconds * 1000)).alias("behind_ms"),
            "highest",
            F.timestamp_seconds(-F.col("at") * F.lit(seconds)).alias("highest_at"),
        )
        .orderBy(F.desc("lag"), F.desc("highest"), "queue", "group")
    )


def over_time(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue, group and time: published, settled, the lag at the end and the highest.

    A time is left out if nothing came, was done or waited then: a lag that stands is in each.
    """
    found = (
        levels(rows, given)
        .withColumn("at", start_of("slot", seconds_of(given)))
        .groupBy(*GROUP, given.moment("at"))
        .agg(
            total("published").alias("published"),
            total("settled").alias("settled"),
            F.max_by("lag", "slot").alias("lag"),
            F.max("lag").alias("highest"),
        )
    )
    step = F.expr(f"interval {LENGTHS[given.span.bucket]} seconds")
    next_one = F.lead("time").over(Window.partitionBy(*GROUP).orderBy("time"))
    stands = (F.col("lag") > 0) & (F.col("next") > F.col("time") + step)
    moments = F.when(stands, F.sequence(F.col("time"), F.col("next") - step, step))
    own, none = F.col("moment") == F.col("time"), F.lit(0).cast("bigint")
    return (
        found.withColumn("next", next_one)
        .withColumn("moment", F.explode(F.coalesce(moments, F.array("time"))))
        .select(
            *GROUP,
            F.col("moment").alias("time"),
            *(
                F.when(own, F.col(name)).otherwise(none).alias(name)
                for name in ("published", "settled")
            ),
            "lag",
            F.when(own, F.col("highest")).otherwise(F.col("lag")).alias("highest"),
        )
        .where("published <> 0 or settled <> 0 or highest is null or highest <> 0")
        .orderBy("time", "queue", "group")
    )


def _lives(rows: DataFrame, given: Given) -> DataFrame:
    """Each worker's figures from its first entry to its last, and whether it seems to have vanished."""
    events = ("received", "processed", "retried", "dead", "reclaimed", "lost_tasks", "stale")
    done = worked(rows, given).where("worker is not null")
    # Any entry shows that metrics went on.
    end = worked(rows, given).agg(F.max("last").alias("end"))
    ended = plus("processed", "retried", "dead", "stale")
    return (
        done.groupBy(*GROUP, "worker")
        .agg(
            F.max("agent").alias("agent"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            *(total(event).alias(event) for event in events),
        )
        .crossJoin(end)
        .withColumn("held", F.greatest(F.try_subtract("received", ended), F.lit(0)))
        .withColumn(
            "vanished",
            F.coalesce(
                (F.col("held") > 0)
                & (F.unix_micros("end") - F.unix_micros("last") > SILENT_SECONDS * 1_000_000),
                F.lit(False),
            ),
        )
    )


def workers(rows: DataFrame, given: Given) -> DataFrame:
    """Return workers that vanished, took over, lost tasks, or came too late to settle them."""
    lives = given.once("lives", lambda: _lives(rows, given))
    return (
        lives.where("vanished or reclaimed > 0 or lost_tasks > 0 or stale > 0")
        .select(
            *GROUP,
            *("worker", "agent", "first", "last", "vanished", "held", "received", "processed"),
            *("reclaimed", F.col("lost_tasks").alias("lost"), "stale"),
        )
        .orderBy(
            F.desc("vanished"),
            *(F.desc(event) for event in ("held", "lost", "stale", "reclaimed")),
            *("queue", "group", "worker"),
        )
    )


def history(rows: DataFrame, given: Given) -> DataFrame:
    """Return by queue, group and time what crashes left: reclaimed, lost, stale, and workers vanished."""
    events = ("reclaimed", "lost_tasks", "stale")
    at = start_of("slot", seconds_of(given)).alias("at")
    told = worked(rows, given).select(*GROUP, at, *events)
    lives = given.once("lives", lambda: _lives(rows, given))
    gone = lives.where("vanished").select(
        *GROUP, F.col("last").alias("at"), F.lit(1).cast("bigint").alias("vanished")
    )
    figures = (*events, "vanished")
    return (
        union((told, gone))
        .where(" or ".join(f"{figure} > 0" for figure in figures))
        .where("at is not null")
        .groupBy(*GROUP, given.moment("at"))
        .agg(*(total(figure).alias(figure) for figure in figures))
        .withColumnRenamed("lost_tasks", "lost")
        .orderBy("time", "queue", "group")
    )


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the tables of lag and crashes."""
    bucket = given.span.bucket
    return (
        Table(
            "groups",
            "How far behind at the end",
            groups(rows, given),
            Chart("bar", "queue", ("lag", "highest"), series="group"),
            note="What waited before the first row is inferred: at least so many, since more were done"
            " than had come. A queue without a group has no worker that told anything.",
        ),
        Table(
            "times",
            f"Lag by {bucket}",
            over_time(rows, given),
            Chart("line", "time", "highest", series=GROUP),
            note="A lag that stands is shown at each time until it changes.",
            top=MOMENTS,
        ),
        Table(
            "workers",
            "Workers with losses",
            workers(rows, given),
            note="A worker seems to have vanished if it held tasks and told nothing more for"
            f" {SILENT_SECONDS} seconds, while metrics went on.",
        ),
        Table(
            "crashes",
            f"Crashes by {bucket}",
            history(rows, given),
            Chart("stacked", "time", ("reclaimed", "lost", "stale")),
            note="The chart shows tasks; 'vanished' counts workers.",
            top=MOMENTS,
        ),
    )


REPORT = Report(
    "lag",
    "Lag and crashes",
    "How many tasks waited at each time, which workers vanished with tasks in their hands, and what"
    " was taken over, lost, or done too late because of it.",
    build,
    "No task was published or done in this time.",
)
