"""Add typed columns to rows: the public name of `rows.typed_columns`."""

from agentbus.pipeline.rows.typed_columns import typed

__all__ = ["typed"]
