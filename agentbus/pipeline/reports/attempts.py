"""Attempts: the slowest ones, and the cost of workers and errors, if attempts are logged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentbus.pipeline.reports.aggregate import Aggregate, Figures, Row
from agentbus.pipeline.reports.arithmetic import ordered
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import TYPED, expression

# Maximum number of attempts, workers and errors in a table.
MOST = 20
_MANY = 1000
_OUTCOMES = ("done", "retried", "dead", "snoozed", "cancelled", "expired", "cut_off")
_ATTEMPT = (
    *("task_id", "task", "queue", "group", "worker", "agent", "attempt", "outcome"),
    *("began", "waited_ms", "took_ms", "error"),
)
_TIMES = ("mean_ms", "longest_ms", "busy_ms", "mean_waited_ms")
_WORKER = ("queue", "group", "worker", "agent", "attempts", *_OUTCOMES, *_TIMES)
_ERROR = (
    "queue",
    "group",
    "cause",
    "attempts",
    "dead",
    "busy_ms",
    "first",
    "last",
    "latest_error",
)


def _given(columns: Collection[str], _span: Span) -> dict[str, str]:
    found = {name: expression(schema.ATTEMPT, name, columns) for name in TYPED[schema.ATTEMPT]}
    counts = (f"count_if(outcome = '{name}') AS {name}" for name in _OUTCOMES)
    return found | {"outcomes": ", ".join(counts)}


# The slowest attempts.
SLOWEST = Aggregate(
    "slowest_attempts",
    f"""
    SELECT {{task_id}} AS task_id, {{task}} AS task, queue, {{group_}} AS `group`, {{worker}} AS worker,
      agent, {{attempt}} AS attempt, event AS outcome, {{began}} AS began, {{waited_ms}} AS waited_ms,
      {{took_ms}} AS took_ms, left({{error}}, 200) AS error
    FROM {{rows}}
    WHERE kind = 'attempt' AND {{took_ms}} IS NOT NULL
    ORDER BY took_ms DESC, task_id, attempt
    LIMIT {MOST}
    """,
    _given,
    kinds=(schema.ATTEMPT,),
)
# Counts by worker (`of_worker`), the busiest workers; and by error class, the most frequent
# classes.
ATTEMPTS = Aggregate(
    "attempts",
    f"""
    SELECT * FROM (
      SELECT grouping(cause) = 1 AS of_worker, queue, `group`, worker, agent, cause, count(*) AS attempts,
        {{outcomes}}, avg(took_ms) AS mean_ms, max(took_ms) AS longest_ms,
        coalesce(sum(took_ms), 0D) AS busy_ms, avg(waited_ms) AS mean_waited_ms, min(time) AS first,
        max(time) AS last, max(struct(time, error)).error AS latest_error
      FROM (
        SELECT queue, {{group_}} AS `group`, {{worker}} AS worker, agent, {{error_kind}} AS cause,
          event AS outcome, {{took_ms}} AS took_ms, {{waited_ms}} AS waited_ms,
          left({{error}}, 200) AS error, time
        FROM {{rows}}
        WHERE kind = 'attempt' AND event IS NOT NULL
      )
      GROUP BY GROUPING SETS ((queue, `group`, worker, agent), (queue, `group`, cause))
    )
    WHERE of_worker OR cause IS NOT NULL
    ORDER BY busy_ms DESC, attempts DESC, queue, `group`, worker, cause
    LIMIT {_MANY}
    """,
    _given,
    kinds=(schema.ATTEMPT,),
)


def _of(figures: Figures, *, workers: bool) -> list[Row]:
    return [row for row in figures.rows(ATTEMPTS) if row["of_worker"] is workers]


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of attempts."""
    return (
        Table(
            "slowest",
            "Slowest attempts",
            _ATTEMPT,
            ordered(figures.rows(SLOWEST), "-took_ms", "task_id", "attempt"),
            Chart("bar", "task_id", "took_ms", unit="ms"),
        ),
        Table(
            "workers",
            "Attempts by worker",
            _WORKER,
            ordered(
                _of(figures, workers=True), "-busy_ms", "-attempts", "queue", "group", "worker"
            ),
            Chart("bar", "worker", "busy_ms", unit="ms", note="The chart shows 'busy'."),
            note="An attempt that was cut off with its worker has no time.",
        ),
        Table(
            "errors",
            "Attempts by error",
            _ERROR,
            ordered(_of(figures, workers=False), "-attempts", "queue", "group", "cause"),
            Chart("bar", "cause", "attempts", series="queue"),
        ),
    )


REPORT = Report(
    "attempts",
    "Attempts",
    "Which attempts at tasks took the longest, and how much time workers and errors cost, in queues whose"
    " policy sets 'record_attempts'.",
    (SLOWEST, ATTEMPTS),
    ("slowest", "workers", "errors"),
    build,
    "No attempts were logged in this time. Set 'record_attempts' in a queue's policy to log its attempts.",
)
