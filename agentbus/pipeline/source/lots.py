"""Splits a read into lots, one for each Spark task, and reads them in the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from agentbus.pipeline.rows.decoding import gap
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.planning import Head, Range, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from agentbus.pipeline.rows.streams import StreamGap
    from agentbus.pipeline.source.options import Options
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class Lot(InputPartition):
    """The work of one task: ranges to read, and known gaps."""

    def __init__(self, ranges: Sequence[Range], gaps: Sequence[StreamGap] = ()) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.gaps = gaps


def read(options: Options, lot: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a lot."""
    # Spark passes a partition of None if there is nothing to read.
    if not isinstance(lot, Lot):
        return
    for found in lot.gaps:
        yield gap(found)
    if lot.ranges:
        with RangeReader(options.settings, page=options.page_rows) as reader:
            yield from reader.read(lot.ranges)


def lots(
    options: Options, ranges: Iterable[Range], gaps: Sequence[StreamGap]
) -> list[InputPartition]:
    """Pack ranges into lots of `partitionRows` rows each, and gaps into one more."""
    size = options.partition_rows
    packed = planning.packed(((part, part.expected or 0) for part in ranges), size)
    found: list[InputPartition] = [Lot(lot) for lot in packed]
    if gaps:
        found.append(Lot((), gaps))
    return found


def parts_of(
    scope: Scope, name: str, begin: ReadPosition, until: ReadPosition, head: Head, size: int
) -> Op[tuple[list[Range], int]]:
    """Cut the entries between two positions into ranges; return these and the number lost."""
    added = until.added - begin.added
    # If the entry before the range was not trimmed, no entry of the range was.
    lost = 0 if epochs.holds(head, begin) else planning.gone(begin, until, head)
    if added - lost <= size:
        return [Range(name, begin.id, until.id, added - lost, added if begin.added else None)], lost
    parts = yield from planning.steps(scope, name, begin.id, until.id, size)
    rows = sum(part.expected or 0 for part in parts)
    yield from epochs.check(scope, name, begin, added, rows)
    return parts, added - rows
