"""Reads the existing entries of streams for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import planning
from agentbus.pipeline.source.discovery import Discovery
from agentbus.pipeline.source.lots import lots, parts_of, read
from agentbus.pipeline.source.planning import Head, Range, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from agentbus.pipeline.source.options import Options
    from agentbus.store.steps import Op


class BatchReader(DataSourceReader):
    """Reads the entries that exist when it plans.

    It supports no filters (`pushFilters`): Spark shares one plan of a Python source among all scans
    of a frame or view, so entries that one query filters out would be missing in others.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

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
        names = yield from Discovery(scope, options.selection).op()
        heads = yield from planning.look(scope, names)
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
        return ranges, gaps


def _lost(head: Head, start: str, end: str) -> int | None:
    """Return the number of lost entries in a part of a stream; None if unknown."""
    if not planning.older(start, head.trimmed):
        return 0
    everything = start == planning.START and not planning.older(end, head.trimmed)
    return head.removed if everything else None
