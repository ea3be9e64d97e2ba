"""Flags: how long they were held, by which agents, and the contention for them.

The stream records when a flag was announced, satisfied, failed or released, by which agent, with
which token, and from which agent it was taken by force. It does not record waiting or refused
agents, or expired holds: waiting leaves no entry, and the end of an expired hold is unknown. An open
hold lasts until the last entry of the report.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from agentbus.pipeline.reports.aggregate import Aggregate, Figures, Row, asked, quantile
from agentbus.pipeline.reports.arithmetic import ordered
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.reports.wording import moment
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# An agent that takes a flag within this time after its release has very likely waited for it.
HANDED_OVER_MS = 1000
# The ways in which a hold ends.
SATISFIED, FAILED, RELEASED = "satisfied", "failed", "released"
TAKEN, EXPIRED, OPEN = "taken", "expired", "open"
_ENDS = (SATISFIED, FAILED, RELEASED)
_ALL_ENDS = (*_ENDS, TAKEN, EXPIRED, OPEN)
_FIGURES = ("holds", "held_ms", "p50_ms", "p90_ms", "max_ms", *_ALL_ENDS)
_CONTENDED = ("agents", "holds", "changes", "handed_over", "taken", "ended_by_force", "free_p50_ms")
_TAKEOVER = ("by", "held_by", "flag", "ended")
_EPOCH = datetime.fromtimestamp(0, UTC)
_IN_ENDS = "('satisfied', 'failed', 'released')"
# The two events of a hold have the same fencing token; other programs' events may have none.
_SAME_HOLD = "(token IS NULL OR {0}.token IS NULL OR token = {0}.token)"

# `before_holder` is the agent of the previous hold, whatever happened in between.
_HOLDS = f"""
    SELECT flag, hold, if(hold, agent, NULL) AS agent, time, seq,
      if(hold, ended, NULL) AS ended,
      CASE WHEN NOT hold THEN agent WHEN known THEN after.agent END AS by,
      CASE WHEN hold AND known THEN unix_millis(after.time)
        WHEN hold AND ended = 'open' THEN {{end}} END - unix_millis(time) AS held_ms,
      if(hold AND let_go, unix_millis(time) - unix_millis(before.time), NULL) AS after_ms,
      if(hold AND let_go, before.agent, NULL) AS former,
      if(hold, before_holder.agent, NULL) AS before_holder
    FROM (
      SELECT *, ended IN ('satisfied', 'failed', 'released', 'taken') AS known,
        coalesce(before.event IN {_IN_ENDS}, false) AS let_go
      FROM (
        SELECT *, event = 'announced' AS hold,
          CASE WHEN after IS NULL THEN 'open'
            WHEN after.event IN {_IN_ENDS} AND {_SAME_HOLD.format("after")} THEN after.event
            WHEN after.event = 'announced' AND after.forced THEN 'taken'
            ELSE 'expired' END AS ended
        FROM (
          SELECT *, lag(this) OVER in_order AS before, lead(this) OVER in_order AS after,
            last_value(if(event = 'announced', struct(agent), NULL), true) OVER (
              PARTITION BY flag ORDER BY time, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before_holder
          FROM (
            SELECT flag, agent, event, token, time, seq,
              struct(agent, event, token, forced, time) AS this
            FROM (
              SELECT {{flag}} AS flag, agent, event, {{token}} AS token, time, seq,
                {{forced_from}} IS NOT NULL AS forced
              FROM {{rows}}
              WHERE kind = 'channel' AND event IN ('announced', 'satisfied', 'failed', 'released')
            )
            WHERE flag IS NOT NULL
          )
          WINDOW in_order AS (PARTITION BY flag ORDER BY time, seq)
        )
      )
    )
    WHERE hold OR (event IN ('satisfied', 'failed')
      AND NOT coalesce(before.event = 'announced' AND {_SAME_HOLD.format("before")}, false))
"""


# Counts by flag, by agent, and by the agent who took over or ended another agent's hold (`what`).
_COUNTED = f"""
    SELECT * EXCEPT (times, free),
      round({quantile("times", 0.5)}, 1) AS p50_ms,
      round({quantile("times", 0.9)}, 1) AS p90_ms,
      round({quantile("free", 0.5)}, 1) AS free_p50_ms
    FROM (
      SELECT
        CASE WHEN grouping(flag) = 0 THEN 'flag' WHEN grouping(agent) = 0 THEN 'agent' ELSE 'takeover' END
          AS what,
        flag, agent, takeover,
        count_if(hold) AS holds,
        coalesce(sum(held_ms), 0L) AS held_ms,
        sort_array(collect_list(held_ms)) AS times,
        max(held_ms) AS max_ms,
        {", ".join(f"count_if(ended = '{end}') AS {end}" for end in _ALL_ENDS)},
        count_if(NOT hold) AS without_hold,
        size(collect_set(if(hold, agent, NULL))) AS agents,
        size(collect_set(if(hold, flag, NULL))) AS flags,
        count_if(before_holder <> agent) AS changes,
        count_if(by_another AND after_ms <= {HANDED_OVER_MS}) AS handed_over,
        count_if(ended IN {_IN_ENDS} AND by <> agent) AS ended_by_force,
        sort_array(collect_list(if(by_another, after_ms, NULL))) AS free,
        max(time) AS last
      FROM (
        SELECT *, former <> agent AND after_ms IS NOT NULL AS by_another,
          if(hold AND (ended = 'taken' OR by <> agent), struct(by, agent AS held_by, flag, ended), NULL)
            AS takeover
        FROM ({_HOLDS})
      )
      GROUP BY GROUPING SETS ((flag), (agent), (takeover))
    )
"""


def _given(columns: Collection[str], span: Span = Span()) -> dict[str, str]:  # noqa: B008 (a value)
    names = ("flag", "token", "forced_from")
    end = "NULL" if span.last is None else f"{(span.last - _EPOCH) // timedelta(milliseconds=1)}L"
    return {name: expression(schema.CHANNEL, name, columns) for name in names} | {"end": end}


HOLDS = Aggregate("holds", _COUNTED, _given, spanned=True, kinds=(schema.CHANNEL,))


def holds(rows: DataFrame) -> DataFrame:
    """Return each hold: flag, hold, agent, time, seq, ended, by, held_ms, after_ms, former, before_holder.

    `hold` is true, and false for an outcome that ended no hold: of it only flag, time and by are known.
    A hold begins with `announced` (at `time`, by `agent`) and ends with the flag's next event, which
    says how (`ended`):

    - `satisfied`, `failed`, `released`: by `by`, who is another than `agent` if it was done by force
    - `taken`: `by` announced it by force
    - `expired`: it was announced again without force, or ended under another fencing token: this
      hold was over before, when is unknown, so `held_ms` is null
    - `open`: nothing came after it; it may still be held or have run out, so `held_ms` is null here

    `after_ms` is how long before the flag was let go, by `former`, if the event before was the end
    of a hold; else both are null. `before_holder` is the agent of the flag's hold before.
    """
    return asked(rows, _HOLDS, **_given(rows.columns))


def _of(figures: Figures, what: str) -> list[Row]:
    return [row for row in figures.rows(HOLDS) if row["what"] == what]


def contention(figures: Figures) -> list[Row]:
    """Return the contention for each flag, most contended first.

    `handed_over` counts holds that began within a second after another agent's hold ended.
    """
    found = (
        {**row, "forced": row["taken"] + row["ended_by_force"] + row["handed_over"]}
        for row in _of(figures, "flag")
        if row["holds"] and (row["agents"] > 1 or row["ended_by_force"])
    )
    return ordered(found, "-forced", "-changes", "flag")


def takeovers(figures: Figures) -> list[Row]:
    """Return which agents took flags by force or ended holds, and the former holders."""
    found = (
        {**row["takeover"], "times": row["holds"], "last": row["last"]}
        for row in _of(figures, "takeover")
        if row["takeover"] is not None
    )
    return ordered(found, "-times", "-last", *_TAKEOVER)


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of flags."""
    last = figures.span.last
    end = "" if last is None else f", {moment(last.replace(microsecond=0))}"
    note = (
        f"An 'open' hold has not ended: it counts until the last entry of this report{end}. A hold"
        " that ran out leaves no entry: 'expired' was announced again, or ended under another token,"
        " and does not count in the times."
    )
    return (
        Table(
            "flags",
            "How long flags were held",
            ("flag", *_FIGURES, "without_hold"),
            ordered(_of(figures, "flag"), "-held_ms", "-holds", "flag"),
            Chart("bar", "flag", "held_ms", unit="ms"),
            note=note,
        ),
        Table(
            "agents",
            "By holder",
            ("agent", "flags", *_FIGURES),
            ordered(
                (row for row in _of(figures, "agent") if row["holds"]),
                *("-held_ms", "-holds", "agent"),
            ),
            Chart("bar", "agent", "held_ms", unit="ms"),
            note=note,
        ),
        Table(
            "contention",
            "Contention",
            ("flag", *_CONTENDED),
            contention(figures),
            Chart("stacked", "flag", ("handed_over", "taken", "ended_by_force")),
            note="Waiting leaves no entry, and neither does a refusal. 'handed over' counts holds that"
            " began within a second after another agent's hold ended: their agents very likely waited."
            " 'free p50' is the median time that the flag was free between two agents.",
        ),
        Table(
            "takeovers",
            "Taken or ended by force",
            (*_TAKEOVER, "times", "last"),
            takeovers(figures),
        ),
    )


REPORT = Report(
    "flags",
    "Flags",
    "How long flags were held, by which agents, how the holds ended, and which agents contended for"
    " them, as far as the channel records it.",
    (HOLDS,),
    ("flags", "agents", "contention", "takeovers"),
    build,
    "No flag was announced or satisfied in this time.",
)
