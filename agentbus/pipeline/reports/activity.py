"""Activity: who said and published how much, on what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from agentbus.pipeline.reports.report import Chart, Given, Report, Table
from agentbus.pipeline.reports.work import entered, entry_seconds, start_of
from agentbus.pipeline.rows import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The most agents in the heat map, and the most cells.
_LINES, _CELLS = 20, 8000
_MOMENTS = 1500
_FIGURES = ("messages", "events", "tasks", "bytes")


def counted(rows: DataFrame, given: Given) -> DataFrame:
    """Return counts by agent, topic and moment: what all tables of activity add up.

    Columns: agent, topic, time (the start of a minute, hour or day), messages, events, tasks, bytes.
    A message is an entry of the channel that an agent spoke, an event one that the bus spoke for it.
    """
    channel, bytes_ = F.col("kind") == schema.CHANNEL, F.coalesce("bytes", F.lit(0))
    return (
        entered(rows, given)
        .withColumn("at", start_of("slot", entry_seconds(given)))
        .groupBy("agent", "topic", given.moment("at"))
        .agg(
            *(
                F.sum(F.when(which, F.col("entries")).otherwise(0)).alias(name)
                for name, which in (
                    ("messages", channel & ~F.col("told")),
                    ("events", F.col("told")),
                    ("tasks", ~channel),
                )
            ),
            F.sum(bytes_).cast("bigint").alias("bytes"),
        )
    )


def by(counts: DataFrame, column: str) -> DataFrame:
    """Return the counts summed up by one column, with the first and the last moment."""
    return summed(counts, column).orderBy(
        F.desc(F.col("messages") + F.col("tasks")), F.desc("events"), F.asc_nulls_last(column)
    )


def summed(counts: DataFrame, *columns: str) -> DataFrame:
    """Return the counts summed up by columns."""
    return counts.groupBy(*columns).agg(*(F.sum(name).alias(name) for name in _FIGURES))


def heat(counts: DataFrame) -> DataFrame:
    """Return entries by agent and moment, of the agents that said and published most."""
    entries = (F.col("messages") + F.col("events") + F.col("tasks")).alias("entries")
    by_agent = counts.where(F.col("agent").isNotNull()).select("agent", "time", entries)
    most = (
        by_agent.groupBy("agent")
        .agg(F.sum("entries").alias("most"))
        .orderBy(F.desc("most"), "agent")
        .limit(_LINES)
    )
    return (
        by_agent.join(F.broadcast(most), "agent")
        .groupBy("agent", "most", "time")
        .agg(F.sum("entries").alias("entries"))
        .orderBy(F.desc("most"), "agent", "time")
        .select("agent", "time", "entries")
    )


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the tables of activity."""
    counts = given.once("activity", lambda: counted(rows, given))
    bucket = given.span.bucket
    return (
        Table(
            "agents",
            "By agent",
            by(counts, "agent"),
            Chart("stacked", "agent", ("messages", "events", "tasks")),
            note="Tasks of other programs, and of versions before 0.2.0, may have no agent.",
        ),
        Table(
            "times",
            f"By {bucket}",
            summed(counts, "time").orderBy("time"),
            Chart("stacked", "time", ("messages", "events", "tasks")),
            top=_MOMENTS,
        ),
        Table(
            "heat",
            f"Agents by {bucket}",
            heat(counts),
            Chart("heat", "time", "entries", series="agent"),
            note=f"Messages, events and tasks together, of the {_LINES} busiest agents.",
            top=_CELLS,
        ),
        Table(
            "topics",
            "By topic",
            by(counts, "topic"),
            Chart("stacked", "topic", ("messages", "events", "tasks")),
            note="Most tasks, and messages said to all, have no topic.",
        ),
    )


REPORT = Report(
    "activity",
    "Activity",
    "Who said and published how much, on what, and when. A message is what an agent said, an event"
    " what the bus said for it (a flag, a note), a task what was put into a queue. Bytes are those"
    " of messages and payloads.",
    build,
    "Nobody said or published anything in this time.",
)
