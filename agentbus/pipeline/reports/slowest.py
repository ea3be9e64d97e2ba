"""Slowest and noisiest: which queues, groups and workers cost the most time, and who writes the most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from agentbus.pipeline.reports.report import Chart, Given, Report, Table, union
from agentbus.pipeline.reports.work import durations, entered, named, share, total, worked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# How many of each are shown: the first by one of the figures.
MOST = 20


def slow(rows: DataFrame, given: Given, *keys: str) -> DataFrame:
    """Return runs, mean_ms, p50_ms, p99_ms and busy_ms by these keys, with the places by each.

    Each is among the first twenty by the mean, by the 99th percentile, or by the time spent; the
    slowest by the 99th percentile comes first.
    """
    spent = (
        worked(rows, given)
        .groupBy(*(F.col(key).alias(f"_{key}") for key in keys))
        .agg(F.max("agent").alias("agent"), F.sum("busy_ms").alias("busy_ms"))
    )
    same = F.lit(True)
    for key in keys:
        same &= F.col(key).eqNullSafe(F.col(f"_{key}"))
    found = (
        durations(rows, given, keys, "ran")
        .join(spent, same)
        .select(
            *keys,
            *(("agent",) if "worker" in keys else ()),
            F.col("tasks").alias("runs"),
            share("busy_ms", "tasks").alias("mean_ms"),
            *("p50_ms", "p99_ms", "busy_ms"),
        )
    )
    figures = {"by_mean": "mean_ms", "by_p99": "p99_ms", "by_busy": "busy_ms"}
    return _first(found, figures, keys).orderBy("by_p99", "by_mean", *keys)


def _first(
    found: DataFrame, figures: dict[str, str], keys: Sequence[str], within: Sequence[str] = ()
) -> DataFrame:
    """Return the rows that are among the first by a figure, with their places by each."""
    places = {
        place: F.row_number().over(
            Window.partitionBy(*within).orderBy(F.desc_nulls_last(figure), *keys)
        )
        for place, figure in figures.items()
    }
    among: Column = F.lit(False)
    for place in places:
        among |= F.col(place) <= MOST
    return found.withColumns(places).where(among)


def noisy(rows: DataFrame, given: Given) -> DataFrame:
    """Return the agents, topics and queues (`what`) with the most entries and the most bytes.

    An agent's are its messages and the tasks that it published. `entries_share` is of all
    messages and tasks that name an agent, a topic, a queue.
    """
    counts = entered(rows, given)
    every = union(
        counts.select(F.lit(what).alias("what"), named(what).alias("name"), "entries", "bytes")
        .where("name is not null")
        .groupBy("what", "name")
        .agg(total("entries").alias("entries"), total("bytes").alias("bytes"))
        for what in ("agent", "topic", "queue")
    )
    whole = Window.partitionBy("what")
    shares = {
        "entries_share": share("entries", F.sum("entries").over(whole)),
        "bytes_share": share("bytes", F.sum("bytes").over(whole)),
    }
    figures = {"by_entries": "entries", "by_bytes": "bytes"}
    return _first(every.withColumns(shares), figures, ("name",), ("what",)).orderBy(
        "what", "by_entries", "by_bytes", "name"
    )


def build(rows: DataFrame, given: Given) -> Sequence[Table]:
    """Return the tables of the slowest and the noisiest."""
    note = "Places are by the mean, the 99th percentile, and the time spent in all."
    return (
        Table(
            "queues",
            "Slowest queues",
            slow(rows, given, "queue"),
            Chart("bar", "queue", ("mean_ms", "p99_ms"), unit="ms"),
            note=note,
        ),
        Table("groups", "Slowest groups", slow(rows, given, "queue", "group"), note=note),
        Table(
            "workers",
            "Slowest workers",
            slow(rows, given, "queue", "group", "worker"),
            Chart("bar", "worker", ("mean_ms", "p99_ms"), unit="ms"),
            note=note,
        ),
        Table(
            "noisiest",
            "Noisiest agents, topics and queues",
            noisy(rows, given),
            Chart("bar", "name", "entries", series="what"),
            note="Entries are messages and tasks, bytes those of their payloads.",
        ),
    )


REPORT = Report(
    "slowest",
    "Slowest and noisiest",
    "Which queues, groups and workers take the longest and spend the most time, and which agents,"
    " topics and queues write the most.",
    build,
    "Nothing was said, published or run in this time.",
)
