"""Conversations: which agents answer which, and how fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.pipeline.reports.aggregate import Aggregate, Figures, Row, asked, quantile
from agentbus.pipeline.reports.arithmetic import ordered
from agentbus.pipeline.reports.report import Chart, Report, Table
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A message after a longer pause than this begins a new conversation, and is not an answer.
ANSWER_WITHIN_MS = 600_000
_HOUR_MS = 3_600_000
# Maximum number of pairs, enough to fill the chart.
_PAIRS = 600
# The prefix of streams that receive the replies to `ask`: each belongs to one process, and is not
# archived.
_PRIVATE = "~replies."
_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9}
_TIMES = tuple(_SHARES)

# An hour, with the end of the hour before, contains every message that its messages may answer, so
# that even a topic with all messages is sorted in parts. Each sort key begins with a number, which
# Spark sorts faster than a name.
_ANSWERS = f"""
    SELECT agent AS speaker, before.agent AS answered, topic,
      unix_millis(time) - unix_millis(before.time) AS took_ms
    FROM (
      SELECT agent, topic, time, carried,
        lag(struct(agent, time)) OVER (
          PARTITION BY xxhash64(topic, hour + carried), topic, hour + carried ORDER BY time, seq
        ) AS before
      FROM (
        SELECT agent, topic, time, seq, unix_millis(time) div {_HOUR_MS}L AS hour,
          explode(if(unix_millis(time) % {_HOUR_MS} >= {_HOUR_MS - ANSWER_WITHIN_MS},
            array(0, 1), array(0))) AS carried
        FROM {{rows}}
        WHERE kind = 'channel' AND event IS NULL AND agent IS NOT NULL
      )
    )
    WHERE carried = 0 AND before.agent <> agent
      AND unix_millis(time) - unix_millis(before.time) <= {ANSWER_WITHIN_MS}
"""

# Few queues hold replies, so the tasks of other queues need not be shuffled for the join. Spark
# evaluates a column with a random value once instead of at each use, so requests are found in one
# pass.
_REQUESTS = f"""
    WITH tasks AS (
      SELECT id, stream, agent, queue, time, correlation_id, {{causation_id}} AS cause,
        {{reply_to}} AS replies, coalesce(fields['id'], concat(id, '@', substring(stream, 3))) AS task_id
      FROM {{rows}}
      WHERE kind = 'queue'
    ), requests AS (
      SELECT *, rand() AS once
      FROM tasks
      WHERE replies IS NOT NULL AND NOT startswith(replies, '{_PRIVATE}')
    )
    SELECT asked.task_id, asked.agent AS asker, asked.queue, asked.replies,
      unix_millis(min(reply.time)) - unix_millis(asked.time) AS took_ms
    FROM requests AS asked
    LEFT JOIN (
      SELECT /*+ BROADCAST(wanted) */ queue, correlation_id, time, cause, task_id
      FROM tasks
      LEFT SEMI JOIN (SELECT DISTINCT replies FROM requests) AS wanted ON queue = wanted.replies
      WHERE correlation_id IS NOT NULL
    ) AS reply
      ON coalesce(asked.correlation_id, asked.task_id) = reply.correlation_id
      AND asked.replies = reply.queue AND reply.time >= asked.time
      AND coalesce(reply.cause = asked.task_id, true) AND reply.task_id <> asked.task_id
    GROUP BY asked.task_id, asked.agent, asked.queue, asked.replies, asked.time
"""


def _took(query: str) -> str:
    """Add p50_ms and p90_ms to a query in one expression: Spark then collects the values once."""
    parts = (f"round({quantile('took', share)}, 1) AS {name}" for name, share in _SHARES.items())
    return f"SELECT * EXCEPT (took), {', '.join(parts)} FROM ({query})"


# The column `what` is pair, speaker or topic.
_COUNTED = _took(f"""
    SELECT
      CASE WHEN grouping(topic) = 0 THEN 'topic' WHEN grouping(answered) = 1 THEN 'speaker'
        ELSE 'pair' END AS what,
      speaker, answered, topic, count(*) AS answers,
      sort_array(collect_list(took_ms)) AS took
    FROM ({_ANSWERS})
    GROUP BY GROUPING SETS ((speaker, answered), (speaker), (topic))
""")
_REPLIED = _took(f"""
    SELECT queue, asker, count(*) AS requests, count(took_ms) AS answers,
      sort_array(collect_list(took_ms)) AS took
    FROM ({_REQUESTS})
    GROUP BY queue, asker
""")


def _envelope(columns: Collection[str], _span: Span = Span()) -> dict[str, str]:  # noqa: B008 (a value)
    names = ("causation_id", "reply_to")
    return {name: expression(schema.QUEUE, name, columns) for name in names}


ANSWERS = Aggregate("answers", _COUNTED)
REPLIES = Aggregate("replies", _REPLIED, _envelope)


def answers(rows: DataFrame) -> DataFrame:
    """Return each answer on the channel: speaker, answered, topic, took_ms.

    A message is an answer if the previous message on the same topic (or also without a topic) is
    another agent's and at most ten minutes older. Notices of the bus do not count.
    """
    return asked(rows, _ANSWERS)


def requests(rows: DataFrame) -> DataFrame:
    """Return each task that requested a reply: task_id, asker, queue, replies, took_ms.

    Its reply is the first later entry in the queue that it names with its correlation id (or else
    its task id); a reply that names a cause must name this task. Without a reply `took_ms` is null.
    """
    return asked(rows, _REQUESTS, **_envelope(rows.columns))


def _answers(figures: Figures, what: str) -> list[Row]:
    return [row for row in figures.rows(ANSWERS) if row["what"] == what]


def _speakers(figures: Figures, pairs: Sequence[Row]) -> list[Row]:
    """Return each agent's numbers and times of answers, given and received."""
    gave = {row["speaker"]: row for row in _answers(figures, "speaker")}
    got: Counter[str] = Counter()
    for row in pairs:
        got[row["answered"]] += row["answers"]
    agents = Counter(row["speaker"] for row in pairs)
    nothing: dict[str, Any] = {"answers": 0, "p50_ms": None, "p90_ms": None}
    rows = (
        {
            "agent": agent,
            "answers": gave.get(agent, nothing)["answers"],
            "was_answered": got[agent],
            "agents": agents[agent],
            **{name: gave.get(agent, nothing)[name] for name in _TIMES},
        }
        for agent in gave.keys() | got.keys()
    )
    return ordered(rows, "-answers", "-was_answered", "agent")


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of conversations."""
    pairs = ordered(_answers(figures, "pair"), "-answers", "speaker", "answered")
    return (
        Table(
            "pairs",
            "Who answers whom",
            ("speaker", "answered", "answers", *_TIMES),
            pairs,
            Chart(
                *("heat", "answered", "answers", "speaker"),
                note="Speakers are on the left, those whom they answer below.",
            ),
            top=_PAIRS,
        ),
        Table(
            "agents",
            "How fast agents answer",
            ("agent", "answers", "was_answered", "agents", *_TIMES),
            _speakers(figures, pairs),
            Chart("bar", "agent", _TIMES, unit="ms"),
        ),
        Table(
            "topics",
            "By topic",
            ("topic", "answers", *_TIMES),
            ordered(_answers(figures, "topic"), "-answers", "topic?"),
            Chart("bar", "topic", "answers"),
        ),
        Table(
            "requests",
            "Requests and replies",
            ("queue", "asker", "requests", "answers", *_TIMES),
            ordered(figures.rows(REPLIES), "-requests", "queue", "asker?"),
            Chart("bar", "queue", ("requests", "answers")),
            note="Requests are tasks that name a queue for the reply. Replies to 'agentbus ask' go to the"
            " asking process alone, and are in no archive.",
        ),
    )


REPORT = Report(
    "conversations",
    "Conversations",
    "Who answers whom, and how fast. On the channel a message counts as an answer if the message"
    " before it, on the same topic, is another agent's and at most ten minutes older. Over queues"
    " a reply belongs to a task by its correlation id.",
    (ANSWERS, REPLIES),
    ("pairs", "agents", "topics", "requests"),
    build,
    "No message or request was answered in this time.",
)
