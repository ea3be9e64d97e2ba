"""Conversations: who answers whom, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from agentbus.pipeline.reports.report import (
    Chart,
    Given,
    Report,
    Table,
    elapsed,
    of_kind,
    percentiles,
)
from agentbus.pipeline.rows import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What is said later than this is a new conversation, no answer.
ANSWER_WITHIN_MS = 600_000
_HOUR_MS = 3_600_000
# Enough to fill the chart.
_PAIRS = 600
# Where `ask` is answered: streams of one process, which no archive holds.
_PRIVATE = "~replies."


def answers(rows: DataFrame) -> DataFrame:
    """Return each answer on the channel: speaker, answered, topic, took_ms.

    A message is an answer if the message before it, on the same topic (no topic is one, too), is
    another agent's and at most ten minutes older. Notices of the bus do not count.
    """
    said = rows.where(
        (F.col("kind") == schema.CHANNEL) & F.col("event").isNull() & F.col("agent").isNotNull()
    ).select("agent", "topic", "time", "seq")
    # An hour, and the end of the one before it, hold all that may be answered: so even one topic with
    # all the messages is sorted in parts.
    ms = F.unix_millis("time")
    said = said.withColumns(
        {"hour": F.expr(f"unix_millis(time) div {_HOUR_MS}L"), "carried": F.lit(False)}
    )
    carried = said.where(ms % _HOUR_MS >= _HOUR_MS - ANSWER_WITHIN_MS).withColumns(
        {"hour": F.col("hour") + 1, "carried": F.lit(True)}
    )
    # A number comes first, since Spark sorts by it faster than by a name.
    part = Window.partitionBy(F.xxhash64("topic", "hour"), "topic", "hour")
    in_order = part.orderBy("time", "seq")
    before = {f"before_{name}": F.lag(name).over(in_order) for name in ("agent", "time")}
    took = elapsed("before_time", "time")
    return (
        said.unionByName(carried)
        .withColumns(before)
        .where(
            ~F.col("carried")
            & (F.col("before_agent") != F.col("agent"))
            & (took <= ANSWER_WITHIN_MS)
        )
        .select(
            F.col("agent").alias("speaker"),
            F.col("before_agent").alias("answered"),
            "topic",
            took.alias("took_ms"),
        )
    )


def requests(rows: DataFrame) -> DataFrame:
    """Return each task that asked for a reply into a queue: asker, queue, replies, took_ms.

    Its reply is the first later entry of the queue that it names, with its correlation id (without
    one, its task id), and caused by it where the reply says by what. Without a reply `took_ms` is null.
    """
    tasks = of_kind(rows, schema.QUEUE)
    task_id = F.coalesce(
        F.col("fields").getItem("id"), F.concat("id", F.lit("@"), F.substring("stream", 3, 1 << 20))
    )
    reply_to = F.col("reply_to")
    asked = tasks.where(reply_to.isNotNull() & ~reply_to.startswith(_PRIVATE)).select(
        F.col("agent").alias("asker"),
        "queue",
        reply_to.alias("replies"),
        F.col("time").alias("asked_at"),
        task_id.alias("task_id"),
        F.coalesce("correlation_id", task_id).alias("about"),
    )
    replied = tasks.where(F.col("correlation_id").isNotNull()).select(
        F.col("queue").alias("reply_queue"),
        F.col("correlation_id").alias("reply_about"),
        F.col("time").alias("replied_at"),
        F.col("causation_id").alias("cause"),
    )
    found = asked.join(
        replied,
        (F.col("about") == F.col("reply_about"))
        & (F.col("replies") == F.col("reply_queue"))
        & (F.col("replied_at") >= F.col("asked_at"))
        & F.coalesce(F.col("cause") == F.col("task_id"), F.lit(True)),
        "left",
    )
    took = elapsed("asked_at", F.min("replied_at"))
    return found.groupBy("task_id", "asker", "queue", "replies", "asked_at").agg(
        took.alias("took_ms")
    )


def pairs(found: DataFrame) -> DataFrame:
    """Return answers counted by who answered whom, with how long it took."""
    return (
        found.groupBy("speaker", "answered")
        .agg(F.count("*").alias("answers"), *percentiles("took_ms", 0.5, 0.9))
        .orderBy(F.desc("answers"), "speaker", "answered")
    )


def speakers(found: DataFrame) -> DataFrame:
    """Return for each agent how often and how fast it answered, and how often it was answered."""
    gave = found.groupBy(F.col("speaker").alias("agent")).agg(
        F.count("*").alias("answers"),
        F.countDistinct("answered").alias("agents"),
        *percentiles("took_ms", 0.5, 0.9),
    )
    got = found.groupBy(F.col("answered").alias("agent")).agg(F.count("*").alias("was_answered"))
    zero = F.lit(0).cast("bigint")
    return (
        gave.join(got, "agent", "full")
        .select(
            "agent",
            F.coalesce("answers", zero).alias("answers"),
            F.coalesce("was_answered", zero).alias("was_answered"),
            F.coalesce("agents", zero).alias("agents"),
            "p50_ms",
            "p90_ms",
        )
        .orderBy(F.desc("answers"), F.desc("was_answered"), "agent")
    )


def by_topic(found: DataFrame) -> DataFrame:
    """Return answers counted by topic."""
    return (
        found.groupBy("topic")
        .agg(F.count("*").alias("answers"), *percentiles("took_ms", 0.5, 0.9))
        .orderBy(F.desc("answers"), F.asc_nulls_last("topic"))
    )


def replies(found: DataFrame) -> DataFrame:
    """Return requests by the queue that was asked and by who asked, with how many were answered."""
    return (
        found.groupBy("queue", "asker")
        .agg(
            F.count("*").alias("requests"),
            F.count("took_ms").alias("answers"),
            *percentiles("took_ms", 0.5, 0.9),
        )
        .orderBy(F.desc("requests"), "queue", F.asc_nulls_last("asker"))
    )


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the tables of conversations."""
    found = given.once("answers", lambda: answers(rows))
    asked = requests(rows)
    return (
        Table(
            "pairs",
            "Who answers whom",
            pairs(found),
            Chart("heat", "answered", "answers", series="speaker"),
            note="In the chart, who speaks stands on the left, and who is answered below.",
            top=_PAIRS,
        ),
        Table(
            "agents",
            "How fast agents answer",
            speakers(found),
            Chart("bar", "agent", ("p50_ms", "p90_ms"), unit="ms"),
        ),
        Table("topics", "By topic", by_topic(found), Chart("bar", "topic", "answers")),
        Table(
            "requests",
            "Requests and replies over queues",
            replies(asked),
            Chart("bar", "queue", ("requests", "answers")),
            note="Tasks that name a queue for the reply. What 'ask' is answered goes to the asking"
            " process alone, and is in no archive.",
        ),
    )


REPORT = Report(
    "conversations",
    "Conversations",
    "Who answers whom, and how fast. On the channel a message counts as an answer if the message"
    " before it, on the same topic, is another agent's and at most ten minutes older. Over queues"
    " a reply belongs to a task by its correlation id.",
    build,
    "Nobody answered anybody in this time.",
)
