"""The columns of an archive as one table: the schema's, the typed columns, and the day."""

from __future__ import annotations

import functools

import pyarrow as pa

from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import types

_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "array<bigint>": pa.list_(pa.field("element", pa.int64())),
}


def columns() -> dict[str, str]:
    """Return the columns of an archive's rows, each with its type in SQL."""
    return of_streams() | types() | {"date": "date"}


def of_streams() -> dict[str, str]:
    """Return the columns of the rows of streams, each with its type in SQL."""
    return dict(part.split(" ", 1) for part in schema.DDL.split(", "))


@functools.cache
def arrow() -> pa.Schema:
    """Return the columns of an archive's rows in exactly the types that Spark expects."""
    own = schema.ARROW
    return pa.schema(
        (name, own.field(name).type if name in own.names else _ARROW[kind])
        for name, kind in columns().items()
    )
