"""Typed columns, by the name that programs import."""

from agentbus.pipeline.rows.typed_columns import typed

__all__ = ["typed"]
