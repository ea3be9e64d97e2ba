"""The Spark data source `agentbus`: the streams of a project as rows, at rest and as they grow.

spark.dataSource.register(AgentBusSource)
spark.read.format("agentbus").option("project", "app").option("streams", "queues").load()
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.decoding import gap
from agentbus.pipeline.rows.schema import DDL, GAP
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.discovery import Discovery
from agentbus.pipeline.source.epochs import Epoch
from agentbus.pipeline.source.options import Options
from agentbus.pipeline.source.planning import Head, Range, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class AgentBusSource(DataSource):
    """Reads the streams of a project as rows of the documented schema.

    Options: `url`, `project`, `streams`, `from`, `to`, `partitionRows`, `pageRows`, `maxRowsPerTrigger`;
    without a url or a project, what the driver's environment and files set.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options(options)

    @classmethod
    def name(cls) -> str:
        return "agentbus"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the entries that exist now."""
        # Spark refuses a reader that takes filters in a session where that is switched off.
        return (_Filtered if _filters_come() else _AtRest)(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of the entries that exist, and of new ones."""
        return _Growing(self._options)


def _filters_come() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


class _Lot(InputPartition):
    """The work of one task: ranges to read, and known gaps."""

    def __init__(self, ranges: Sequence[Range], gaps: Sequence[StreamGap] = ()) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.gaps = gaps


def _read(options: Options, lot: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes a partition of None if there is nothing to read.
    if not isinstance(lot, _Lot):
        return
    for found in lot.gaps:
        yield gap(found)
    if lot.ranges:
        with RangeReader(options.settings, page=options.page_rows) as reader:
            yield from reader.read(lot.ranges)


def _lots(
    options: Options, ranges: Iterable[Range], gaps: Sequence[StreamGap]
) -> list[InputPartition]:
    size = options.partition_rows
    lots = planning.packed(((part, part.expected or 0) for part in ranges), size)
    found: list[InputPartition] = [_Lot(lot) for lot in lots]
    if gaps:
        found.append(_Lot((), gaps))
    return found


class _AtRest(DataSourceReader):
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
        return _lots(options, ranges, gaps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

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
                parts, lost = yield from _parts(scope, name, start, head.end, head, size)
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
            and queue in self._only.get("queue", (queue,))
        )


def _parts(
    scope: Scope, name: str, begin: ReadPosition, until: ReadPosition, head: Head, size: int
) -> Op[tuple[list[Range], int]]:
    """Cut the entries between two positions into ranges; return these, and how many entries are gone."""
    added = until.added - begin.added
    # Where the entries before are not trimmed, these are not.
    lost = 0 if epochs.holds(head, begin) else planning.gone(begin, until, head)
    if added - lost <= size:
        return [Range(name, begin.id, until.id, added - lost, added if begin.added else None)], lost
    parts = yield from planning.steps(scope, name, begin.id, until.id, size)
    rows = sum(part.expected or 0 for part in parts)
    yield from epochs.check(scope, name, begin, added, rows)
    return parts, added - rows


def _lost(head: Head, start: str, end: str) -> int | None:
    """Return how many entries of a part of a stream are gone; None if unknown."""
    if not planning.older(start, head.trimmed):
        return 0
    everything = start == planning.START and not planning.older(end, head.trimmed)
    return head.removed if everything else None


class _Filtered(_AtRest):
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


class _Growing(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{stream: [last id, entries added]}`: from two of them what was lost is arithmetic."""

    def __init__(self, options: Options) -> None:
        options.refuse_end()
        self._options = options
        self._reader: RangeReader | None = None
        self._discovery: Discovery | None = None
        self._goal: dict[str, ReadPosition] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the reader, too, and open what they need.
        return {"_options": self._options, "_reader": None, "_discovery": None, "_goal": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of the first batch: the beginning, or the option `from`."""
        opened = self._open()
        return opened.run(self._first(opened))

    def _first(self, reader: RangeReader) -> Op[dict[str, Any]]:
        low, _ = yield from self._options.bounds(reader.scope)
        heads = yield from self._look(reader, {})
        if low is None:
            return {}
        positions = {}
        for name, head in heads.items():
            until = min(planning.before(low), head.last, key=position)
            # A position is an entry's, as long as there is one: whether it is still there is looked at.
            page = yield Command(
                *("XREVRANGE", reader.scope.keys.stream(name), until, "-", "COUNT", 1)
            )
            until = text(page[0][0]) if page else until
            parts = yield from planning.steps(
                reader.scope, name, until, head.last, self._options.partition_rows
            )
            rest = sum(part.expected or 0 for part in parts)
            positions[name] = ReadPosition(until, max(0, head.added - rest))
        return _offset(positions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many rows a batch may have."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; `start` itself if there is nothing new."""
        reader = self._open()
        begin = _positions(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = reader.run(self._latest(reader, begin, most))
        return start if end == begin else _offset(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far the server is, for the query's progress."""
        reader = self._open()
        heads = reader.run(self._look(reader, {}))
        return _offset({name: head.end for name, head in heads.items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present ends of all streams: the query ends there."""
        reader = self._open()
        heads = reader.run(self._look(reader, {}))
        self._goal = {name: head.end for name, head in heads.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the entries between two offsets into ranges."""
        reader = self._open()
        ranges, gaps = reader.run(self._cut(reader, _positions(start), _positions(end)))
        return _lots(self._options, ranges, gaps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> RangeReader:
        if self._reader is None:
            self._reader = RangeReader(self._options.settings)
        return self._reader

    def _look(self, reader: RangeReader, known: Iterable[str]) -> Op[dict[str, Head]]:
        if self._discovery is None:
            self._discovery = Discovery(reader.scope, self._options.selection)
        names = yield from self._discovery.op(known)
        heads = yield from planning.look(reader.scope, names)
        return heads

    def _latest(
        self, reader: RangeReader, begin: dict[str, ReadPosition], most: int | None
    ) -> Op[dict[str, ReadPosition]]:
        heads = yield from self._look(reader, begin)
        # What is new is counted when it is read.
        starts, _ = yield from epochs.continued(
            reader.scope, heads, begin, counts=lambda _name: False
        )
        new = epochs.news(heads, starts)
        if self._goal is not None:
            new = {
                name: (start, min(end, self._goal[name], key=lambda at: at.added))
                for name, (start, end) in new.items()
                if name in self._goal and start.added < self._goal[name].added
            }
        waiting = sum(end.added - start.added for start, end in new.values())
        ends = dict(begin)
        for name, (start, end) in new.items():
            backlog = end.added - start.added
            share = (
                backlog if most is None or waiting <= most else max(1, most * backlog // waiting)
            )
            if share < backlog:
                end = yield from self._part(reader, name, start, end, heads[name], share)
            ends[name] = end
        return ends

    def _part(
        self,
        reader: RangeReader,
        name: str,
        start: ReadPosition,
        end: ReadPosition,
        head: Head,
        share: int,
    ) -> Op[ReadPosition]:
        """Return the position `share` entries after another."""
        lost = planning.gone(start, end, head)
        parts = yield from planning.steps(reader.scope, name, start.id, end.id, share, share)
        found = sum(part.expected or 0 for part in parts)
        if found < share:
            return end
        return ReadPosition(parts[-1].until, min(end.added, start.added + lost + found))

    def _cut(
        self,
        reader: RangeReader,
        start: Mapping[str, ReadPosition],
        end: Mapping[str, ReadPosition],
    ) -> Op[tuple[list[Range], list[StreamGap]]]:
        changed = {
            name: (start.get(name, ReadPosition()), until)
            for name, until in end.items()
            if start.get(name) != until
        }
        heads = yield from planning.look(reader.scope, list(changed))
        ranges: list[Range] = []
        gaps: list[StreamGap] = []
        for name, (begin, until) in changed.items():
            head = heads.get(name) or Head(until.id, until.added, 0, None)
            if until.added < begin.added or epochs.epoch(head, begin) in (
                Epoch.RECREATED,
                Epoch.UNSURE,
            ):
                # The stream was deleted and created again, so its count began at 0.
                begin = ReadPosition(begin.id, 0)
            size = self._options.partition_rows
            parts, lost = yield from _parts(reader.scope, name, begin, until, head, size)
            ranges += parts
            if lost:
                gaps.append(planning.gap(name, lost, begin, until, head))
        return ranges, gaps


def _positions(offset: Mapping[str, Any]) -> dict[str, ReadPosition]:
    return {
        name: ReadPosition(str(entry_id), int(added)) for name, (entry_id, added) in offset.items()
    }


def _offset(positions: Mapping[str, ReadPosition]) -> dict[str, Any]:
    # Spark compares offsets by their text.
    return {name: [positions[name].id, positions[name].added] for name in sorted(positions)}
