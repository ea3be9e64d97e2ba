"""Computes typed columns from the fields of entries: compaction writes them, reports read them.

A missing or malformed value becomes null; no expression raises an error. Every expression reads
only columns of the schema, and is deterministic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from agentbus.pipeline.rows import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# This optional column is true in rows of files that compaction wrote: their typed columns are
# complete, so that a null need not be looked up in `fields`. As a literal in a scan of such files
# alone, the column lets Spark skip reading `fields`.
COMPACTED = "compacted"

# The queue in a stream's name: `q:<queue>`, `q:<queue>:<priority>`, `dlq:<queue>:<group>`.
STREAM_QUEUE = "replace(replace(split_part(stream, ':', 2), '%3A', ':'), '%25', '%')"

# Columns of the events in docs/reference/metrics.md. The schema itself has the column `lost`.
COUNTERS = {
    "received": "received",
    "processed": "processed",
    "failed": "failed",
    "retried": "retried",
    "reclaimed": "reclaimed",
    "dead": "dead",
    "lost": "lost_tasks",
    "stale": "stale",
    "duplicates": "duplicates",
    "cancelled": "cancelled",
    "released": "released",
    "refused": "refused",
}
BUCKETS = 24
# The last millisecond of the year 9999, the last year of four digits.
_LAST_MS = 253402300799999
_MOST = 10**15 - 1


def _text(field: str) -> str:
    return f"fields['{field}']"


def _meta(field: str, of: str = "meta") -> str:
    """A member of the envelope; a text search first avoids parsing the many that lack it."""
    meta = f"fields['{of}']"
    return f"if(contains({meta}, '\"{field}\"'), get_json_object({meta}, '$.{field}'), null)"


def _count(field: str) -> str:
    """An integer of at most 15 digits, as in `agentbus metrics`, so that sums do not overflow."""
    number = f"try_cast(fields['{field}'] as bigint)"
    return f"if({number} between 0 and {_MOST}, {number}, null)"


def _milliseconds(field: str) -> str:
    """A duration, cast to decimal first, since casts to double accept NaN and infinity."""
    number = f"try_cast(fields['{field}'] as decimal(20,3))"
    # Spark evaluates `number` once, although the condition and the result repeat it.
    return f"if({number} between 0 and {10**17 - 1}, cast({number} as double), null)"


def _moment(text: str) -> str:
    """A time given in unix milliseconds."""
    number = f"try_cast({text} as bigint)"
    return f"if({number} between 0 and {_LAST_MS}, timestamp_millis({number}), null)"


def _written_moment(text: str) -> str:
    """A time in RFC 3339; the pattern excludes `now`, which a cast would accept."""
    return rf"if({text} rlike '^\\d{{4}}-\\d\\d-\\d\\d', try_cast({text} as timestamp), null)"


def _created(text: str) -> str:
    """A time given in unix seconds with a fraction."""
    number = f"try_cast({text} as decimal(20,6))"
    return (
        f"if({number} between 0 and {_LAST_MS // 1000},"
        f" timestamp_micros(cast({number} * 1000000 as bigint)), null)"
    )


def _buckets(field: str) -> str:
    """Counts by bucket from a JSON list of integers, split rather than parsed, which is faster."""
    # The pattern has possessive repetition and no capturing groups, and ends in `\z`: `$` would
    # also match before a final line break.
    text, number = f"fields['{field}']", r"(?:0|[1-9]\\d{0,14})"
    return (
        rf"case when {text} = '[]' then cast(array() as array<bigint>)"
        # A cast to a number ignores blanks.
        rf" when {text} rlike '^\\[ *{number}(?: *, *{number})*+ *\\]\\z'"
        f" then slice(cast(split(substring({text}, 2, octet_length({text}) - 2), ',') as array<bigint>), 1,"
        f" {BUCKETS}) end"
    )


# The class of an error: its first line up to a colon, such as an exception's class.
_CAUSE = r"nullif(left(trim(substring_index(substring_index(fields['error'], '\n', 1), ':', 1)), 80), '')"
_BYTES = "cast(octet_length(payload) as bigint)"

# Maps kinds to columns, and columns to SQL expressions over the schema. A column has one type in
# all kinds.
TYPED: dict[str, dict[str, str]] = {
    schema.CHANNEL: {
        "flag": _text("flag"),
        "note": _text("note"),
        "token": _text("token"),
        "forced_from": _text("forced_from"),
        "bytes": _BYTES,
    },
    schema.QUEUE: {
        # The stream is `q:<queue>`, or `q:<queue>:<priority>` if the priority is not normal.
        "priority": "split_part(concat(stream, ':normal'), ':', 3)",
        "task_key": _meta("key"),
        "ordering_key": _meta("ordering_key"),
        "causation_id": _meta("causation_id"),
        "reply_to": _meta("reply_to"),
        "replayed_from": _meta("replayed_from"),
        "created_at": _created(_meta("created_at")),
        "bytes": _BYTES,
    },
    schema.DEAD_LETTER: {
        "group_": _text("group"),
        "priority": _text("priority"),
        "original_id": _text("original_id"),
        "task_id": _text("task_id"),
        "attempts": _count("attempts"),
        "error": _text("error"),
        "error_kind": _CAUSE,
        "failed_at": _written_moment(_text("failed_at")),
        "bytes": _BYTES,
    },
    schema.METRICS: {
        "group_": _text("group"),
        "worker": _text("worker"),
        "began": _moment(_text("from")),
        "ended": _moment(_text("to")),
        **{column: _count(event) for event, column in COUNTERS.items()},
        "busy_ms": _milliseconds("busy_ms"),
        "waited_ms": _milliseconds("waited_ms"),
        "ran_counts": _buckets("ran"),
        "waited_counts": _buckets("waited"),
    },
    schema.EVENT: {
        "event_uuid": _text("event_uuid"),
        "outbox_id": _count("outbox_id"),
        "causation_id": _meta("causation_id", "metadata"),
        "created_at": _moment(_meta("__creation_timestamp_ms__", "metadata")),
        "bytes": _BYTES,
    },
    schema.INBOX: {
        "thread": _text("thread"),
        "reply_to": _text("reply_to"),
        "bytes": _BYTES,
    },
    schema.ATTEMPT: {
        "group_": _text("group"),
        "worker": _text("worker"),
        "task_id": _text("task_id"),
        "attempt": _count("attempt"),
        "priority": _text("priority"),
        "task": _text("task"),
        "began": _moment(_text("began")),
        "waited_ms": _milliseconds("waited_ms"),
        "took_ms": _milliseconds("took_ms"),
        "error": _text("error"),
        "error_kind": _CAUSE,
    },
    schema.GAP: {},
}


# Types of the columns that are not text; Spark would take seconds to infer them.
_TYPES = {
    **dict.fromkeys(("created_at", "failed_at", "began", "ended"), "timestamp"),
    **dict.fromkeys(("bytes", "attempt", "attempts", "outbox_id", *COUNTERS.values()), "bigint"),
    **dict.fromkeys(("busy_ms", "waited_ms", "took_ms"), "double"),
    **dict.fromkeys(("ran_counts", "waited_counts"), "array<bigint>"),
}


def types() -> dict[str, str]:
    """Return the typed columns of all kinds, each with its type in SQL."""
    return {
        name: _TYPES.get(name, "string") for kind in schema.KINDS for name in TYPED.get(kind, ())
    }


def expression(kind: str, name: str, there: Collection[str] = ()) -> str:
    """Return SQL for a typed column of a kind, for a frame that has the columns `there`.

    An existing typed column is used where it is not null, and always in rows that are marked as
    `compacted`.
    """
    raw = TYPED[kind][name]
    if name not in there:
        return raw
    known = f"coalesce({name}, {raw})"
    return f"if({COMPACTED}, {name}, {known})" if COMPACTED in there else known


def typed(rows: DataFrame, kind: str) -> DataFrame:
    """Return rows of one kind with its typed columns added, as `expression` makes them.

    The rows are not filtered: all must be of this `kind`.
    """
    there = frozenset(rows.columns)
    return rows.withColumns(
        {name: F.expr(expression(kind, name, there)) for name in TYPED.get(kind, {})}
    )
