"""The one schema of entries as rows: what the source `agentbus` yields and what an archive holds.

The rules by which it may change are in docs/reference/archive.md: a version only ever adds columns.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = 1

# Kinds of streams: the values of `kind`, an archive's first partition. A `gap` stands for entries that
# were gone before they were read.
CHANNEL, QUEUE, DEAD_LETTER, METRICS, GAP = "channel", "queue", "dead_letter", "metrics", "gap"
EVENT, INBOX = "event", "inbox"
# The one kind of which an entry has several rows.
ATTEMPT = "attempt"
KINDS = (CHANNEL, QUEUE, DEAD_LETTER, METRICS, EVENT, INBOX, ATTEMPT, GAP)

FIELDS = pa.map_(pa.string(), pa.string())
# Spark compares the first batch with this to the letter.
ARROW = pa.schema(
    [
        ("version", pa.int32()),
        ("stream", pa.string()),
        ("kind", pa.string()),
        ("id", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("seq", pa.int64()),
        ("agent", pa.string()),
        ("topic", pa.string()),
        ("event", pa.string()),
        ("queue", pa.string()),
        ("correlation_id", pa.string()),
        ("payload", pa.string()),
        ("fields", FIELDS),
        ("lost", pa.int64()),
    ]
)
COLUMNS = tuple(ARROW.names)
# The same for Spark, as it is written in SQL.
DDL = (
    "version int, stream string, kind string, id string, time timestamp, seq bigint, agent string,"
    " topic string, event string, queue string, correlation_id string, payload string,"
    " fields map<string,string>, lost bigint"
)
