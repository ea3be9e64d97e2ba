"""Narrows a read by the filters that Spark hands over: fewer streams, and fewer of their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from agentbus.core.stream import position
from agentbus.core.timespec import stream_id
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.schema import ATTEMPT, GAP, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable


class Narrowing:
    """What the filters of a read leave: values of `kind`, `stream` and `queue`, and a range of ids."""

    def __init__(self) -> None:
        self._lows: list[str] = []
        self._highs: list[str] = []
        self._only: dict[str, frozenset[str]] = {}

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrow the read by each filter that allows it."""
        for found in filters:
            self._take(found)

    def bounds(self, low: str | None, high: str | None) -> tuple[str | None, str | None]:
        """Return the first and the last id to read, both inclusive, None for no bound."""
        return (
            max(filter(None, (low, *self._lows)), key=position, default=None),
            min(filter(None, (high, *self._highs)), key=position, default=None),
        )

    def wants(self, name: str) -> bool:
        """Tell whether entries, or gaps, of a stream are wanted."""
        kind, queue = streams.kind(name), streams.queue(name)
        # A gap has only the name of its stream.
        kinds = self._only.get("kind", frozenset((kind, GAP)))
        return (
            (kind in kinds or GAP in kinds)
            and name in self._only.get("stream", (name,))
            # Their entries say of which queue they are.
            and (kind in (METRICS, ATTEMPT) or queue in self._only.get("queue", (queue,)))
        )

    def wants_kind(self, kind: str) -> bool:
        """Tell whether rows of a kind are wanted."""
        return kind in self._only.get("kind", (kind,))

    def _take(self, found: Filter) -> None:
        column = ".".join(getattr(found, "attribute", ()))
        value: Any = getattr(found, "value", None)
        if column in ("stream", "kind", "queue") and isinstance(found, (EqualTo, In)):
            values = frozenset(value if isinstance(found, In) else (value,))
            self._only[column] = self._only.get(column, values) & values
        elif column == "id" and isinstance(found, EqualTo) and isinstance(value, str):
            # Only a full id is an entry's.
            if "-" in value and stream_id(value) is not None:
                self._lows.append(value)
                self._highs.append(value)
        elif column == "time" and hasattr(value, "timestamp"):
            moment = max(0, int(value.timestamp() * 1000))
            if isinstance(found, (EqualTo, GreaterThan, GreaterThanOrEqual)):
                self._lows.append(f"{moment}-0")
            if isinstance(found, (EqualTo, LessThan, LessThanOrEqual)):
                self._highs.append(f"{moment}-{2**64 - 1}")
