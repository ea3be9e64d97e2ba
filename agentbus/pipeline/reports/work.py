"""Reports of work from the workers' metrics: by worker with task durations, and by time slot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

from agentbus.pipeline.reports import wording
from agentbus.pipeline.reports.aggregate import Aggregate, Figures, Row
from agentbus.pipeline.reports.arithmetic import summed
from agentbus.pipeline.reports.entries import slot, slot_seconds
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import COUNTERS, TYPED, expression
from agentbus.workers.metrics import BOUNDS, Histogram

# The key of a queue's group, or of a worker of the group.
Key: TypeAlias = "tuple[Any, ...]"

# The columns that count the outcomes of tasks.
EVENTS = tuple(COUNTERS.values())
GROUP = ("queue", "group")
WORKER = (*GROUP, "worker")
# Maximum number of rows of a table by time.
MOMENTS = 20_000
_TIMES = ("busy_ms", "waited_ms")
# A percentile in the first bucket of workers, and the accuracy of all.
SHORTEST = "< 1 ms"
ACCURACY = (
    "Percentiles from 1 ms to 70 min are right within a factor of 2: the bounds of workers' buckets"
    f" double. {wording.duration(BOUNDS[-1] * 1000)} also stands for all that is longer."
)


def _given(columns: Collection[str], span: Span) -> dict[str, str]:
    typed = {name: expression(schema.METRICS, name, columns) for name in TYPED[schema.METRICS]}
    return {
        "slot": slot(slot_seconds(span)),
        "typed": ", ".join(f"{typed[name]} AS {name}" for name in (*EVENTS, *_TIMES)),
        "group": typed["group_"],
        "worker": typed["worker"],
        "ran_counts": typed["ran_counts"],
        "waited_counts": typed["waited_counts"],
        "events": ", ".join(f"try_sum(coalesce({name}, 0L)) AS {name}" for name in EVENTS),
        "times": ", ".join(f"sum(coalesce({name}, 0D)) AS {name}" for name in _TIMES),
    }


# Metrics by worker (`of_worker`), or by slot of `slot_seconds`. The agent is part of the key, since
# Spark finds the greatest name only by sorting all rows. Entries without a queue belong to other
# programs.
WORK = Aggregate(
    "work",
    """
    SELECT grouping(slot) = 1 AS of_worker, queue, `group`, worker, agent, slot,
      min(time) AS first, max(time) AS last, {events}, {times}
    FROM (
      SELECT queue, nullif({group}, '') AS `group`, nullif({worker}, '') AS worker,
        nullif(agent, '') AS agent, {slot} AS slot, time, {typed}
      FROM {rows}
      WHERE kind = 'metrics' AND nullif(queue, '') IS NOT NULL
    )
    GROUP BY GROUPING SETS ((queue, `group`, worker, agent), (queue, `group`, slot))
    """,
    _given,
    spanned=True,
    kinds=(schema.METRICS,),
)
# Numbers of tasks that `ran` or `waited` (`what`) by worker, for each bucket `n` that is not empty.
# They are rows, not 48 columns: Java takes as long to compile 48 sums as Spark takes for a million
# rows.
DURATIONS = Aggregate(
    "durations",
    """
    SELECT queue, `group`, worker, what, n, sum(double(number)) AS number
    FROM (
      SELECT queue, `group`, worker, what, posexplode(counts) AS (n, number)
      FROM (
        SELECT queue, nullif(`group`, '') AS `group`, nullif(worker, '') AS worker,
          stack(2, 'ran', ran, 'waited', waited) AS (what, counts)
        FROM (
          SELECT queue, {group} AS `group`, {worker} AS worker, {ran_counts} AS ran,
            {waited_counts} AS waited
          FROM {rows}
          WHERE kind = 'metrics' AND nullif(queue, '') IS NOT NULL
        )
      )
    )
    WHERE number > 0
    GROUP BY queue, `group`, worker, what, n
    """,
    _given,
    kinds=(schema.METRICS,),
)


def by_worker(figures: Figures) -> list[Row]:
    """Return each worker's totals; a row without a worker has the refusals of publishers."""
    return figures.once(_by_worker)


def _by_worker(figures: Figures) -> list[Row]:
    return [row for row in figures.rows(WORK) if row["of_worker"]]


def detail(rows: Sequence[Row]) -> str | None:
    """Return the column that tells groups of a queue apart, None if each queue has only one."""
    groups = {(row["queue"], row["group"]) for row in rows}
    return "group" if len(groups) > len({queue for queue, _ in groups}) else None


def by_slot(figures: Figures) -> Iterator[Row]:
    """Yield each group's totals in a time slot."""
    return (row for row in figures.rows(WORK) if not row["of_worker"])


def done(figures: Figures, keys: Sequence[str]) -> dict[Key, dict[str, Any]]:
    """Return the sums of all events, `busy_ms` and `waited_ms` by these keys."""
    return summed(by_worker(figures), keys, (*EVENTS, *_TIMES))


def durations(figures: Figures, keys: Sequence[str], what: str) -> dict[Key, Histogram]:
    """Return the distribution of tasks' run or waiting times by these keys."""
    found: dict[Key, Histogram] = {}
    for row in figures.rows(DURATIONS):
        if row["what"] == what:
            key = tuple([row[name] for name in keys])
            if key not in found:
                found[key] = Histogram()
            found[key].buckets[row["n"]] += int(row["number"])
    return found


def percentiles(found: Histogram, *shares: float) -> dict[str, float | None]:
    """Return percentiles named p50_ms, p99_ms and so on, interpolated within buckets.

    One in the first bucket, of which no lower bound is known, is null: see `SHORTEST`.
    """
    values = {share: found.percentile(share) for share in shares}
    return {
        f"p{share * 100:.0f}_ms": None if value <= BOUNDS[0] else value * 1000
        for share, value in values.items()
    }
