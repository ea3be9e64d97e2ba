"""The columns of an archive as one table: the schema's, the typed columns, and the day."""

from __future__ import annotations

from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import types


def columns() -> dict[str, str]:
    """Return the columns of an archive's rows, each with its type in SQL."""
    return of_streams() | types() | {"date": "date"}


def of_streams() -> dict[str, str]:
    """Return the columns of the rows of streams, each with its type in SQL."""
    return dict(part.split(" ", 1) for part in schema.DDL.split(", "))
