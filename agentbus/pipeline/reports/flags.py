"""Flags: how long they were held, by whom, and who contended for them.

The stream says when a flag was announced, satisfied, failed and released, by whom, with which token,
and from whom it was taken by force. It does not say who waited, who was refused, or that a hold ran
out: waiting leaves no entry, and the end of a hold that expired is unknown.
"""

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
    from pyspark.sql import Column, DataFrame

# An agent that takes a flag so soon after its release has very likely waited for it.
HANDED_OVER_MS = 1000
# How a hold ended.
SATISFIED, FAILED, RELEASED = "satisfied", "failed", "released"
TAKEN, EXPIRED, OPEN = "taken", "expired", "open"
_ENDS = (SATISFIED, FAILED, RELEASED)
_ALL_ENDS = (*_ENDS, TAKEN, EXPIRED, OPEN)


def holds(rows: DataFrame) -> DataFrame:
    """Return each hold: flag, hold, agent, time, seq, ended, by, held_ms, after_ms, former.

    `hold` is true, and false for an outcome that ended no hold: of it only flag, time and by are known.
    A hold begins with `announced` (at `time`, by `agent`) and ends with the flag's next event, which
    says how (`ended`):

    - `satisfied`, `failed`, `released`: by `by`, who is another than `agent` if it was done by force
    - `taken`: `by` announced it by force
    - `expired`: it was announced again without force, or ended under another fencing token: this
      hold was over before, when is unknown, so `held_ms` is null
    - `open`: nothing came after it; it may still be held or have run out, so `held_ms` is null

    `after_ms` is how long before the flag was let go, by `former`, if the event before was the end
    of a hold; else both are null.
    """
    told = rows.where(F.col("event").isin("announced", *_ENDS))
    found = of_kind(told, schema.CHANNEL).select(
        *("flag", "agent", "event", "token"),
        F.col("forced_from").isNotNull().alias("forced"),
        *("time", "seq"),
    )
    in_order = Window.partitionBy("flag").orderBy("time", "seq")
    event = F.struct("agent", "event", "token", "forced", "time")
    events = found.where(F.col("flag").isNotNull()).select(
        "flag",
        *("agent", "event", "token", "time", "seq"),
        F.lag(event).over(in_order).alias("before"),
        F.lead(event).over(in_order).alias("after"),
    )
    announced = F.col("event") == "announced"
    ended = (
        F.when(F.col("after").isNull(), OPEN)
        .when(F.col("after.event").isin(*_ENDS) & _same_hold("after"), F.col("after.event"))
        .when((F.col("after.event") == "announced") & F.col("after.forced"), TAKEN)
        .otherwise(EXPIRED)
    )
    known = ended.isin(*_ENDS, TAKEN)
    let_go = F.col("before.event").isin(*_ENDS)
    # An outcome without a hold: it counts for the flag, and for no agent.
    alone = F.col("event").isin(SATISFIED, FAILED) & ~F.coalesce(
        (F.col("before.event") == "announced") & _same_hold("before"), F.lit(False)
    )
    return events.where(announced | alone).select(
        "flag",
        announced.alias("hold"),
        F.when(announced, F.col("agent")).alias("agent"),
        *("time", "seq"),
        F.when(announced, ended).alias("ended"),
        F.when(announced & known, F.col("after.agent"))
        .when(~announced, F.col("agent"))
        .alias("by"),
        F.when(announced & known, elapsed("time", "after.time")).alias("held_ms"),
        F.when(announced & let_go, elapsed("before.time", "time")).alias("after_ms"),
        F.when(announced & let_go, F.col("before.agent")).alias("former"),
    )


def by_flag(found: DataFrame) -> DataFrame:
    """Return for each flag how often and how long it was held, and how its holds ended."""
    return (
        found.groupBy("flag")
        .agg(*_figures(), F.count_if(~F.col("hold")).alias("without_hold"))
        .orderBy(F.desc("holds"), F.desc("held_ms"), "flag")
    )


def by_agent(found: DataFrame) -> DataFrame:
    """Return for each agent how often and how long it held flags, and how its holds ended."""
    return (
        found.where("hold")
        .groupBy("agent")
        .agg(F.countDistinct("flag").alias("flags"), *_figures())
        .orderBy(F.desc("held_ms"), F.desc("holds"), "agent")
    )


def contention(found: DataFrame) -> DataFrame:
    """Return for each flag how much it was contended for, the most contended first.

    `handed_over` counts holds that began within a second after another agent let the flag go.
    """
    held = found.where("hold")
    in_order = Window.partitionBy("flag").orderBy("time", "seq")
    before = F.lag("agent").over(in_order)
    changes = held.withColumn("changed", F.coalesce(before != F.col("agent"), F.lit(False)))
    by_another = (F.col("former") != F.col("agent")) & F.col("after_ms").isNotNull()
    handed = by_another & (F.col("after_ms") <= HANDED_OVER_MS)
    forced_end = F.col("ended").isin(*_ENDS) & (F.col("by") != F.col("agent"))
    return (
        changes.groupBy("flag")
        .agg(
            F.countDistinct("agent").alias("agents"),
            F.count("*").alias("holds"),
            F.count_if("changed").alias("changes"),
            F.count_if(F.coalesce(handed, F.lit(False))).alias("handed_over"),
            F.count_if(F.col("ended") == TAKEN).alias("taken"),
            F.count_if(F.coalesce(forced_end, F.lit(False))).alias("ended_by_force"),
            percentiles(F.when(by_another, F.col("after_ms")), 0.5)[0].alias("free_p50_ms"),
        )
        .where((F.col("agents") > 1) | (F.col("ended_by_force") > 0))
        .orderBy(
            F.desc(F.col("taken") + F.col("ended_by_force") + F.col("handed_over")),
            F.desc("changes"),
            "flag",
        )
    )


def takeovers(found: DataFrame) -> DataFrame:
    """Return who took flags from whom by force, or ended another's hold."""
    forced = (F.col("ended") == TAKEN) | (F.col("by") != F.col("agent"))
    return (
        found.where(F.col("hold") & F.coalesce(forced, F.lit(False)))
        .groupBy("by", F.col("agent").alias("held_by"), "flag", "ended")
        .agg(F.count("*").alias("times"), F.max("time").alias("last"))
        .orderBy(F.desc("times"), F.desc("last"), "by", "held_by", "flag", "ended")
    )


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the tables of flags."""
    found = given.once("holds", lambda: holds(rows))
    return (
        Table(
            "flags",
            "How long flags were held",
            by_flag(found),
            Chart("stacked", "flag", _ALL_ENDS),
            note="A hold that ran out leaves no entry: 'expired' was announced again, or ended under"
            " another token; 'open' has no end so far. Neither counts in the times.",
        ),
        Table("agents", "By holder", by_agent(found), Chart("bar", "agent", "held_ms", unit="ms")),
        Table(
            "contention",
            "Contention",
            contention(found),
            Chart("stacked", "flag", ("handed_over", "taken", "ended_by_force")),
            note="Waiting leaves no entry, and neither does a refusal. What can be counted:"
            " 'handed_over' counts holds that began within a second after another agent let go, so that"
            " the next holder very likely waited; 'free_p50_ms' is how long the flag lay free between"
            " two agents.",
        ),
        Table("takeovers", "Taken or ended by force", takeovers(found)),
    )


def _figures() -> tuple[Column, ...]:
    return (
        F.count_if("hold").alias("holds"),
        F.coalesce(F.sum("held_ms"), F.lit(0)).cast("bigint").alias("held_ms"),
        *percentiles("held_ms", 0.5, 0.9),
        F.max("held_ms").alias("max_ms"),
        *(F.count_if(F.col("ended") == end).alias(end) for end in _ALL_ENDS),
    )


def _same_hold(other: str) -> Column:
    """Tell whether two events have one fencing token; other programs' events may have none."""
    mine, theirs = F.col("token"), F.col(f"{other}.token")
    return mine.isNull() | theirs.isNull() | (mine == theirs)


REPORT = Report(
    "flags",
    "Flags",
    "How long flags were held, by whom, how the holds ended, and who contended for them, as far as"
    " the channel tells.",
    build,
    "No flag was announced or satisfied in this time.",
)
