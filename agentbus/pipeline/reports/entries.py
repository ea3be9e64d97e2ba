"""Messages and tasks, counted in narrow time slots, which several reports sum up.

Slots are computed in UTC, so that neither time zones nor daylight saving shift them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from agentbus.pipeline.reports.aggregate import Aggregate, Figures, Row
from agentbus.pipeline.reports.span import LENGTHS, Span
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import STREAM_QUEUE, expression

# Maps queues to numbers of arrived tasks by slot.
Arrived: TypeAlias = "dict[str, dict[int, int]]"

HOUR = 3600
# Seconds per slot of work, by the bucket of the report.
_SLOTS = {"second": 1, "minute": 60, "hour": 300, "day": 900}
# Columns that are summed.
COUNTS = ("messages", "events", "tasks", "bytes")


def slot_seconds(span: Span) -> int:
    """Return the seconds of a slot of work: tasks that arrived in queues, and tasks done."""
    return _SLOTS[span.bucket]


def talk_seconds(span: Span) -> int:
    """Return the seconds of a slot of agents and topics: one second, minute or hour."""
    return min(LENGTHS[span.bucket], HOUR)


def slot(seconds: int) -> str:
    """Return SQL for the number of the slot of `time`, counted from 1970."""
    return f"unix_micros(time) div {seconds * 1_000_000}L"


def _given(columns: Collection[str], span: Span) -> dict[str, str]:
    return {
        "slot": slot(talk_seconds(span)),
        "narrow": slot(slot_seconds(span)),
        # A gap names only its stream, from which the queue follows.
        "gap_queue": STREAM_QUEUE,
        "bytes": expression(schema.QUEUE, "bytes", columns),
    }


# `what` is agent, topic or queue, and `name` its name, which may be null. Slots last
# `talk_seconds`, those of queues `slot_seconds`. An event is a notice of the bus on the channel;
# `lost` counts tasks that were gone before they were archived.
ENTRIES = Aggregate(
    "entries",
    """
    SELECT
      CASE WHEN grouping(agent) = 0 THEN 'agent' WHEN grouping(topic) = 0 THEN 'topic' ELSE 'queue' END
        AS what,
      CASE WHEN grouping(agent) = 0 THEN agent WHEN grouping(topic) = 0 THEN topic ELSE queue END AS name,
      CASE WHEN grouping(narrow) = 0 THEN narrow ELSE slot END AS slot,
      count_if(kind = 'channel' AND event IS NULL) AS messages,
      count_if(kind = 'channel' AND event IS NOT NULL) AS events,
      count_if(kind = 'queue') AS tasks,
      try_sum(bytes) AS bytes,
      try_sum(lost) AS lost
    FROM (
      SELECT kind, agent, topic, event,
        nullif(if(kind = 'gap', {gap_queue}, queue), '') AS queue,
        {slot} AS slot, {narrow} AS narrow,
        coalesce({bytes}, 0L) AS bytes,
        if(kind = 'gap', coalesce(lost, 0L), 0L) AS lost
      FROM {rows}
      WHERE kind IN ('channel', 'queue') OR (kind = 'gap' AND startswith(stream, 'q:'))
    )
    GROUP BY GROUPING SETS ((agent, slot), (topic, slot), (queue, narrow))
    """,
    _given,
    spanned=True,
)


def counted(figures: Figures, what: str) -> Iterator[Row]:
    """Yield the counts of agents, topics or queues by slot; queues without a name are omitted."""
    for row in figures.rows(ENTRIES):
        if (
            row["what"] == what
            and (row["messages"] or row["events"] or row["tasks"])
            and (what != "queue" or row["name"] is not None)
        ):
            yield row


def arrived(figures: Figures) -> Arrived:
    """Return the number of tasks that arrived in each queue by slot, including tasks in gaps."""
    return figures.once(_arrived)


def _arrived(figures: Figures) -> Arrived:
    found: Arrived = {}
    for row in figures.rows(ENTRIES):
        if row["what"] == "queue" and row["name"] is not None and row["slot"] is not None:
            slots = found.setdefault(row["name"], {})
            slots[row["slot"]] = row["tasks"] + (row["lost"] or 0)
    return found
