"""Tasks: numbers of finished tasks, waiting and run times, and outcomes of failures.

The figures come from the metrics stream, as written by workers and by programs that fetch tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agentbus.pipeline.reports.aggregate import Aggregate, Figures, Row
from agentbus.pipeline.reports.arithmetic import ordered, share, summed
from agentbus.pipeline.reports.entries import ENTRIES, arrived, slot_seconds
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.span import LENGTHS, Span
from agentbus.pipeline.reports.work import (
    ACCURACY,
    DURATIONS,
    EVENTS,
    GROUP,
    MOMENTS,
    SHORTEST,
    WORK,
    by_slot,
    detail,
    done,
    durations,
    percentiles,
)
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import expression

# Maximum number of causes per queue.
_CAUSES = 10
_COUNTS = ("published", "received", "processed", "failed", "retried", "dead")
_OUTCOME = (
    *(*GROUP, "tasks", "runs", *(event.removesuffix("_tasks") for event in EVENTS)),
    *("attempts", "retried_share", "dead_share", "busy_ms"),
)
_TIMING = (*GROUP, "what", "tasks", "runs", "mean_ms", "p50_ms", "p90_ms", "p99_ms")
_CAUSE = (
    *(*GROUP, "cause", "dead_letters", "dead_letters_share", "attempts"),
    *("first", "last", "latest_error"),
)


def outcomes(figures: Figures) -> list[Row]:
    """Return tasks, runs, events, attempts per task, and shares of failures, by queue and group.

    `tasks` counts finished tasks, processed or dead. A task may have several `runs`; `attempts` is
    their ratio. `retried_share` is a share of runs, `dead_share` a share of tasks. Refusals of
    publishers have no group.
    """
    found = []
    for (queue, group), sums in done(figures, GROUP).items():
        runs, finished = sums["processed"] + sums["failed"], sums["processed"] + sums["dead"]
        found.append(
            {
                "queue": queue,
                "group": group,
                "tasks": finished,
                "runs": runs,
                **{event.removesuffix("_tasks"): sums[event] for event in EVENTS},
                "attempts": share(runs, finished),
                "retried_share": share(sums["retried"], runs),
                "dead_share": share(sums["dead"], finished),
                "busy_ms": sums["busy_ms"],
            }
        )
    return ordered(found, "-processed", *GROUP)


def timings(figures: Figures) -> list[Row]:
    """Return the mean and percentiles of run and waiting times (`what`), by queue and group.

    `tasks` is the number of delivered tasks, each counted once, and `runs` the number of their
    runs. Each run has a duration, and each task waits once.
    """
    sums = done(figures, GROUP)
    kinds = {"running": ("ran", "busy_ms"), "waiting": ("waited", "waited_ms")}
    took = {what: durations(figures, GROUP, counted) for what, (counted, _) in kinds.items()}
    # A wait is counted at a task's first delivery, a run at every attempt.
    number = {what: {k: sum(one.buckets) for k, one in took[what].items()} for what in kinds}
    found = [
        {
            **dict(zip(GROUP, key, strict=True)),
            "what": what,
            "tasks": number["waiting"].get(key, 0),
            "runs": number["running"].get(key, 0),
            "mean_ms": share(sums[key][spent], number[what][key]),
            **percentiles(one, 0.5, 0.9, 0.99),
        }
        for what, (_, spent) in kinds.items()
        for key, one in took[what].items()
    ]
    return ordered(found, "what", "-p99_ms", *GROUP)


def throughput(figures: Figures) -> list[Row]:
    """Return the numbers of arrived and finished tasks, by queue and time bucket."""
    span = figures.span
    seconds, nothing = slot_seconds(span), dict.fromkeys((*_COUNTS, "busy_ms"), 0)
    rows: list[Row] = [
        {**nothing, "queue": queue, "slot": slot, "published": number}
        for queue, slots in arrived(figures).items()
        for slot, number in slots.items()
    ]
    rows += [{**row, "published": 0} for row in by_slot(figures) if row["slot"] is not None]
    timed = ({**row, "time": figures.moment(row["slot"] * seconds)} for row in rows)
    found: list[dict[str, Any]] = [
        {
            "queue": queue,
            "time": time,
            **sums,
            "busy_ms": float(sums["busy_ms"]),
            "processed_rate": sums["processed"] / LENGTHS[span.bucket],
        }
        for (queue, time), sums in summed(timed, ("queue", "time"), (*_COUNTS, "busy_ms")).items()
    ]
    return ordered(found, "time", "queue")


def _given(columns: Collection[str], _span: Span) -> dict[str, str]:
    names = ("group_", "attempts", "error", "error_kind")
    return {name: expression(schema.DEAD_LETTER, name, columns) for name in names}


# Dead letters by queue, group and cause: their number and attempts, and the last letter. `cause` is
# the exception's class, or the error's text up to a colon. Only the ten most frequent causes of a
# group are kept.
CAUSES = Aggregate(
    "causes",
    f"""
    SELECT queue, `group`, cause, dead_letters, dead_letters_share, attempts, first, last,
      left(latest.error, 200) AS latest_error
    FROM (
      SELECT *,
        try_divide(double(dead_letters), double(sum(dead_letters) OVER whole)) AS dead_letters_share,
        row_number() OVER (PARTITION BY queue, `group` ORDER BY dead_letters DESC, cause) AS place
      FROM (
        SELECT queue, `group`, cause, count(*) AS dead_letters, avg(attempts) AS attempts,
          min(time) AS first, max(time) AS last, max(struct(time, seq, error)) AS latest
        FROM (
          SELECT queue, nullif({{group_}}, '') AS `group`, {{error_kind}} AS cause,
            {{attempts}} AS attempts, {{error}} AS error, time, seq
          FROM {{rows}}
          WHERE kind = 'dead_letter' AND nullif(queue, '') IS NOT NULL
        )
        GROUP BY queue, `group`, cause
      )
      WINDOW whole AS (PARTITION BY queue, `group`)
    )
    WHERE place <= {_CAUSES}
    """,
    _given,
    kinds=(schema.DEAD_LETTER,),
)


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of tasks."""
    spans = timings(figures)
    return (
        Table(
            "outcomes",
            "What became of tasks",
            _OUTCOME,
            outcomes(figures),
            Chart("stacked", "queue", ("processed", "dead"), note="The chart shows tasks."),
            note="A task that is retried has several runs; 'attempts' is their mean number. 'retried share'"
            " is a share of runs, 'dead share' of tasks.",
        ),
        Table(
            "throughput",
            f"By {figures.span.bucket}",
            ("queue", "time", *_COUNTS, "busy_ms", "processed_rate"),
            throughput(figures),
            Chart("line", "time", "processed", series="queue", note="The chart shows 'processed'."),
            note="'received' and 'failed' count runs.",
            top=MOMENTS,
        ),
        Table(
            "timings",
            "How long tasks ran and waited",
            _TIMING,
            spans,
            Chart(
                *("bar", "queue", ("p50_ms", "p90_ms", "p99_ms")),
                unit="ms",
                detail=detail(spans),
                apart="what",
            ),
            note=ACCURACY,
            unmeasured=SHORTEST,
        ),
        Table(
            "causes",
            "Dead letters by cause",
            _CAUSE,
            ordered(figures.rows(CAUSES), "-dead_letters", *GROUP, "cause"),
            Chart("bar", "cause", "dead_letters", series="queue"),
        ),
    )


REPORT = Report(
    "tasks",
    "Tasks",
    "How many tasks were done, how long they waited and ran, how many attempts they took, and why tasks"
    " became dead. Workers and programs that take tasks by hand count this themselves.",
    (ENTRIES, WORK, DURATIONS, CAUSES),
    ("outcomes", "throughput", "timings", "causes"),
    build,
    "No task was published or run in this time.",
)
