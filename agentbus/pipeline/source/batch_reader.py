"""Reads the entries of streams that exist now, for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from agentbus.core.stream import position
from agentbus.core.timespec import stream_id
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.schema import ATTEMPT, GAP, METRICS
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import planning
from agentbus.pipeline.source.discovery import Discovery
from agentbus.pipeline.source.lots import lots, parts_of, read
from agentbus.pipeline.source.planning import Head, Range, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from agentbus.pipeline.source.options import Options
    from agentbus.store.steps import Op


class BatchReader(DataSourceReader):
    """A reader of the entries that exist when it plans."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lows: list[str] = []
        self._highs: list[str] = []
        self._only: dict[str, frozenset[str]] = {}

    def partitions(self) -> list[InputPartition]:
        """Cut all existing entries into ranges."""
        options = self._options
        with RangeReader(options.settings) as reader:
            ranges, gaps = reader.run(self._plan(reader))
        return lots(options, ranges, gaps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)

    def _plan(self, reader: RangeReader) -> Op[tuple[list[Range], list[StreamGap]]]:
        options, scope, size = self._options, reader.scope, self._options.partition_rows
        low, high = yield from options.bounds(scope)
        low = max(filter(None, (low, *self._lows)), key=position, default=None)
        high = min(filter(None, (high, *self._highs)), key=position, default=None)
        names = yield from Discovery(scope, options.selection).op()
        heads = yield from planning.look(scope, [n for n in names if self._wanted(n)])
        ranges: list[Range] = []
        gaps: list[StreamGap] = []
        for name, head in heads.items():
            end = head.last if high is None or planning.older(head.last, high) else high
            start = ReadPosition(planning.START if low is None else planning.before(low))
            if not planning.older(start.id, end):
                continue
            lost: int | None
            if low is None and end == head.last:
                parts, lost = yield from parts_of(scope, name, start, head.end, head, size)
            else:
                parts = yield from planning.steps(scope, name, start.id, end, size)
                lost = _lost(head, start.id, end)
            ranges += parts
            if lost != 0:
                gaps.append(planning.gap(name, lost, start, ReadPosition(end, head.added), head))
        return ranges, gaps if GAP in self._only.get("kind", (GAP,)) else []

    def _wanted(self, name: str) -> bool:
        kind, queue = streams.kind(name), streams.queue(name)
        # A gap has only the name of its stream.
        kinds = self._only.get("kind", frozenset((kind, GAP)))
        return (
            (kind in kinds or GAP in kinds)
            and name in self._only.get("stream", (name,))
            # Their entries say of which queue they are.
            and (kind in (METRICS, ATTEMPT) or queue in self._only.get("queue", (queue,)))
        )


def _lost(head: Head, start: str, end: str) -> int | None:
    """Return how many entries of a part of a stream are gone; None if unknown."""
    if not planning.older(start, head.trimmed):
        return 0
    everything = start == planning.START and not planning.older(end, head.trimmed)
    return head.removed if everything else None


class FilteringReader(BatchReader):
    """A reader that takes filters, if Spark's session allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Read less if a filter allows it; Spark applies all filters again."""
        for found in filters:
            self._take(found)
        return filters

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
