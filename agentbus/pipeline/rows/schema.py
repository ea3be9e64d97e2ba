"""The schema of entries as rows, for the source `agentbus` and for archives.

The rules for changes are in docs/reference/archive.md: a version only adds columns.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = 1

# Kinds of streams: the values of `kind`, by which an archive is partitioned first. A `gap` stands
# for entries that were gone before they were read.
CHANNEL, QUEUE, DEAD_LETTER, METRICS, GAP = "channel", "queue", "dead_letter", "metrics", "gap"
EVENT, INBOX = "event", "inbox"
# The only kind whose entries have several rows.
ATTEMPT = "attempt"
KINDS = (CHANNEL, QUEUE, DEAD_LETTER, METRICS, EVENT, INBOX, ATTEMPT, GAP)

FIELDS = pa.map_(pa.string(), pa.string())
# Spark requires the first batch to match this schema exactly.
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
# The same schema in SQL, for Spark.
DDL = (
    "version int, stream string, kind string, id string, time timestamp, seq bigint, agent string,"
    " topic string, event string, queue string, correlation_id string, payload string,"
    " fields map<string,string>, lost bigint"
)
