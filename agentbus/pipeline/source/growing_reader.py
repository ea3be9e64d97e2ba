"""Reads streams as they grow, batch by batch, for Spark."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from agentbus.core.stream import position, text
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source import epochs, planning
from agentbus.pipeline.source.discovery import Discovery
from agentbus.pipeline.source.epochs import Epoch
from agentbus.pipeline.source.lots import lots, parts_of, read
from agentbus.pipeline.source.planning import Head, Range, ReadPosition
from agentbus.pipeline.source.range_reader import RangeReader
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from agentbus.pipeline.source.options import Options
    from agentbus.store.steps import Op


class GrowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads with offsets `{stream: [last id, entries added]}`, which show the lost entries."""

    def __init__(self, options: Options) -> None:
        options.refuse_end()
        self._options = options
        self._reader: RangeReader | None = None
        self._discovery: Discovery | None = None
        self._goal: dict[str, ReadPosition] | None = None
        self._last = ""

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to its tasks, which open their own connections.
        return {
            "_options": self._options,
            "_reader": None,
            "_discovery": None,
            "_goal": None,
            "_last": "",
        }

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
            # A position is the id of an entry if there is one, as later checks look for the entry.
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
        """Return the maximum number of rows of a batch."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; `start` itself without new entries."""
        reader = self._open()
        begin = _positions(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = reader.run(self._latest(reader, begin, most))
        return start if end == begin else _offset(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the streams on the server, for the query's progress."""
        reader = self._open()
        heads = reader.run(self._look(reader, {}))
        return _offset({name: head.end for name, head in heads.items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the present ends of all streams, at which the query will stop."""
        reader = self._open()
        heads = reader.run(self._look(reader, {}))
        self._goal = {name: head.end for name, head in heads.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the entries between two offsets into ranges."""
        reader = self._open()
        ranges, gaps = reader.run(self._cut(reader, _positions(start), _positions(end)))
        return lots(self._options, ranges, gaps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)

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
        # Do not count the new entries here: they are counted when they are read.
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
        ends, room = dict(begin), most
        # Begin after the stream with which the last limited batch ended, so that each has its turn.
        names = sorted(new)
        turn = bisect.bisect_right(names, self._last)
        for name in names[turn:] + names[:turn]:
            if room is not None and room <= 0:
                break
            start, end = new[name]
            lost = planning.gone(start, end, heads[name])
            # The lost entries of a stream are one row.
            rows = end.added - start.added - lost + (lost > 0)
            if room is not None and rows > room:
                share, rows = max(1, room - (lost > 0)), room
                end = yield from self._part(reader, name, start, end, heads[name], share)
            ends[name] = end
            if room is not None:
                room, self._last = room - rows, name
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
                # The stream was deleted and created again, so its counter restarted at 0.
                begin = ReadPosition(begin.id, 0)
            size = self._options.partition_rows
            parts, lost = yield from parts_of(reader.scope, name, begin, until, head, size)
            ranges += parts
            if lost:
                gaps.append(planning.gap(name, lost, begin, until, head))
        return ranges, gaps


def _positions(offset: Mapping[str, Any]) -> dict[str, ReadPosition]:
    return {
        name: ReadPosition(str(entry_id), int(added)) for name, (entry_id, added) in offset.items()
    }


def _offset(positions: Mapping[str, ReadPosition]) -> dict[str, Any]:
    # Sort the names: Spark compares offsets as text.
    return {name: [positions[name].id, positions[name].added] for name in sorted(positions)}
