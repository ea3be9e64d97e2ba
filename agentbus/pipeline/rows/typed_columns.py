"""Make typed columns from the fields of entries: compaction writes them, reports read them.

A value that is missing or malformed is null: nothing here raises, whatever the rows hold. Every
expression reads only columns of the schema, and is deterministic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from agentbus.pipeline.rows import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A frame may have this column, true in rows of files that compaction wrote: there a null is what the
# fields say, and `fields` need not be read to find out. As a literal of a scan of such files alone, it
# lets Spark leave the column `fields` on the disk.
COMPACTED = "compacted"

# The queue that a stream's name has: `q:<queue>`, `q:<queue>:<priority>`, `dlq:<queue>:<group>`.
STREAM_QUEUE = "replace(replace(split_part(stream, ':', 2), '%3A', ':'), '%25', '%')"

# Every event that docs/reference/metrics.md names, by its column. `lost` is a column of the schema.
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
# The last moment that a timestamp of four digits' year can say, in milliseconds.
_LAST_MS = 253402300799999
_MOST = 10**15 - 1


def _text(field: str) -> str:
    return f"fields['{field}']"


def _meta(field: str, of: str = "meta") -> str:
    """A member of the envelope. Looked for as text first: most lack it, and parsing takes longest."""
    meta = f"fields['{of}']"
    return f"if(contains({meta}, '\"{field}\"'), get_json_object({meta}, '$.{field}'), null)"


def _count(field: str) -> str:
    """A whole number of at most 15 digits, as `agentbus metrics` takes it: sums of them fit."""
    number = f"try_cast(fields['{field}'] as bigint)"
    return f"if({number} between 0 and {_MOST}, {number}, null)"


def _milliseconds(field: str) -> str:
    """A duration: a decimal first, since casts to double take NaN and infinity."""
    number = f"try_cast(fields['{field}'] as decimal(20,3))"
    # Spark evaluates `number` once, although the condition and the result repeat it.
    return f"if({number} between 0 and {10**17 - 1}, cast({number} as double), null)"


def _moment(text: str) -> str:
    """A moment in unix milliseconds."""
    number = f"try_cast({text} as bigint)"
    return f"if({number} between 0 and {_LAST_MS}, timestamp_millis({number}), null)"


def _written_moment(text: str) -> str:
    """A moment in RFC 3339. Casts take `now`, too, which is another moment each time."""
    return rf"if({text} rlike '^\\d{{4}}-\\d\\d-\\d\\d', try_cast({text} as timestamp), null)"


def _created(text: str) -> str:
    """A moment in unix seconds with a fraction."""
    number = f"try_cast({text} as decimal(20,6))"
    return (
        f"if({number} between 0 and {_LAST_MS // 1000},"
        f" timestamp_micros(cast({number} * 1000000 as bigint)), null)"
    )


def _buckets(field: str) -> str:
    """Counts by bucket, out of a list of whole numbers in JSON: splitting takes less than parsing."""
    # Without groups to keep, without backtracking, and to the end itself: `$` lets a line end be.
    text, number = f"fields['{field}']", r"(?:0|[1-9]\\d{0,14})"
    return (
        rf"case when {text} = '[]' then cast(array() as array<bigint>)"
        rf" when {text} rlike '^\\[{number}(?:,{number})*+\\]\\z'"
        f" then slice(cast(split(substring({text}, 2, octet_length({text}) - 2), ',') as array<bigint>), 1,"
        f" {BUCKETS}) end"
    )


# The kind of an error: the first line up to a colon, such as an exception's class.
_CAUSE = r"nullif(left(trim(substring_index(substring_index(fields['error'], '\n', 1), ':', 1)), 80), '')"
_BYTES = "cast(octet_length(payload) as bigint)"

# Kind -> column -> what it is in SQL over the columns of the schema. A column has one type in all kinds.
TYPED: dict[str, dict[str, str]] = {
    schema.CHANNEL: {
        "flag": _text("flag"),
        "note": _text("note"),
        "token": _text("token"),
        "forced_from": _text("forced_from"),
        "bytes": _BYTES,
    },
    schema.QUEUE: {
        # The stream is `q:<queue>`, or `q:<queue>:<priority>` where that is not normal.
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


# Columns that are not text. Listed, since Spark takes seconds to infer the types.
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
    """Return a typed column of a kind in SQL, for a frame that has the columns `there`.

    One that is among them is taken where it is not null, and everywhere in rows that are marked as
    `compacted`.
    """
    raw = TYPED[kind][name]
    if name not in there:
        return raw
    known = f"coalesce({name}, {raw})"
    return f"if({COMPACTED}, {name}, {known})" if COMPACTED in there else known


def typed(rows: DataFrame, kind: str) -> DataFrame:
    """Return rows of one kind with its typed columns added, as `expression` makes them.

    The rows are not filtered: `kind` says what they are.
    """
    there = frozenset(rows.columns)
    return rows.withColumns(
        {name: F.expr(expression(kind, name, there)) for name in TYPED.get(kind, {})}
    )
