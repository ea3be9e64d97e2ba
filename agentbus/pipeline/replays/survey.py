"""Surveys an archive's files for rows that a replay can read without the JVM, and splits them.

The survey reads only ids. Spark reads the rows if the replay has a condition or includes dead
letters, or if the files do not follow the order of a stream.
"""

from __future__ import annotations

import graphlib
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from agentbus.core.errors import AgentBusError
from agentbus.pipeline.archives.file_selection import LAST_SEQ, chosen_files
from agentbus.pipeline.replays.reading import (
    ArchiveFile,
    FileGroups,
    Id,
    TaskShare,
    WantedRows,
    earlier,
    milliseconds,
)
from agentbus.pipeline.replays.record import Source
from agentbus.pipeline.rows import streams
from agentbus.pipeline.rows.schema import CHANNEL, QUEUE
from agentbus.queues.ids import OF_THE_BUS

if TYPE_CHECKING:
    from agentbus.pipeline.archives.delta_table import ArchiveTable
    from agentbus.pipeline.archives.file_selection import IdRange
    from agentbus.pipeline.archives.places import Place
    from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile
    from agentbus.pipeline.replays.selection import Wanted

# The rows of a file by stream: their number, first and last id, and row groups.
_Parts: TypeAlias = dict[str, tuple[int, Id, Id, set[int]]]

_READ = ("stream", "time", "seq", "queue")
_BATCH = 65_536
# Times truncated to the end of the year 9999 have no order, nor have numbers of more than 63 bits.
_LAST_MS = 253_402_300_799_999
# Maximum runs of one stream's rows in a batch, and the number of rows that allows one more run:
# each run is a request to the server, and Spark would make longer runs.
_RUNS, _LONG = 100, 50


class _SparkNeeded(Exception):
    """The rows cannot be published in the order of the files."""


@dataclass(slots=True)
class Found:
    """The rows of a stream to replay: number, first and last id, and row groups."""

    rows: int = 0
    first: Id = (0, 0)
    last: Id = (-1, 0)
    groups: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ArchiveSurvey:
    """The rows to replay by stream, and the row groups and files with these rows."""

    place: Place
    files: tuple[DataFile, ...]
    span: IdRange
    streams: Mapping[str, Found]

    def sources(self, wanted: Wanted) -> tuple[Source, ...]:
        """Return the streams to replay."""
        found = [
            Source(
                name,
                None if wanted.channel else wanted.queue or streams.queue(name),
                streams.priority(name),
                one.rows,
                f"{one.first[0]}-{one.first[1]}",
                f"{one.last[0]}-{one.last[1]}",
            )
            for name, one in self.streams.items()
        ]
        return tuple(sorted(found, key=Source.order))

    def share(self, numbers: Mapping[str, int], last: Mapping[str, Id]) -> TaskShare:
        """Return the rows that a task must read to publish these streams, up to their last ids."""
        groups = defaultdict(set)
        for name in numbers:
            for file, group in self.streams[name].groups if name in self.streams else ():
                groups[file].add(group)
        parts = tuple(
            FileGroups(self.files[file].path, tuple(sorted(groups[file])))
            for file in sorted(groups)
        )
        return TaskShare(self.place.target, parts, self.span, numbers, last)


def survey(table: ArchiveTable, state: ArchiveSnapshot, wanted: Wanted) -> ArchiveSurvey | None:
    """Return the survey of the selected rows, None if Spark has to read them."""
    if wanted.where is not None or not set(wanted.kinds) <= {QUEUE, CHANNEL}:
        return None
    names = [name for name in state.positions if not wanted.streams or name in wanted.streams]
    files = chosen_files(table, state, wanted.range, wanted.kinds)
    try:
        parts = [
            (file, _look(table.place, file, wanted, state.positions))
            for file in files
            if any(map(file.may_hold, names))
        ]
        ordered = _ordered(parts)
    except (_SparkNeeded, AgentBusError):
        # Let Spark read the file and report the problem.
        return None
    found: dict[str, Found] = {}
    for number, (_, held) in enumerate(ordered):
        for name, (rows, first, last, groups) in held.items():
            into = found.setdefault(name, Found(first=first))
            into.rows += rows
            into.last = last
            into.groups |= {(number, group) for group in groups}
    return ArchiveSurvey(table.place, tuple(file for file, _ in ordered), wanted.range, found)


def _ordered(parts: Sequence[tuple[DataFile, _Parts]]) -> list[tuple[DataFile, _Parts]]:
    """Return files in an order in which the parts of each stream follow each other."""
    by_stream: dict[str, list[tuple[Id, Id, int]]] = defaultdict(list)
    for number, (_, held) in enumerate(parts):
        for name, (_, first, last, _) in held.items():
            by_stream[name].append((first, last, number))
    order: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(
        dict.fromkeys(range(len(parts)), ())
    )
    for of_stream in by_stream.values():
        for (_, last, before), (first, _, after) in itertools.pairwise(sorted(of_stream)):
            _need(last <= first)
            order.add(after, before)
    try:
        return [parts[number] for number in order.static_order()]
    except graphlib.CycleError:
        raise _SparkNeeded from None


def _look(place: Place, file: DataFile, wanted: Wanted, known: Collection[str]) -> _Parts:
    """Return the selected rows of a file by stream. Raises `_SparkNeeded`."""
    held: _Parts = {}
    back = wanted.queue is None and not wanted.channel
    queues = {name: streams.queue(name) for name in known if file.may_hold(name)}
    names = [
        name
        for name, queue in queues.items()
        if (not wanted.streams or name in wanted.streams)
        and not (back and (queue or "").startswith(OF_THE_BUS))
    ]
    every_name = pa.array(queues, pa.string())
    own = pa.array([queues[name] for name in names], pa.string())
    rows_of = WantedRows(names, wanted.range)
    with closing(ArchiveFile(place.target, file.path)) as opened:
        for group in range(opened.groups):
            for every in opened.read(_READ, (group,), _BATCH):
                _need(pc.all(pc.is_in(every.column("stream"), every_name)).as_py())
                numbers, rows = rows_of.among(every)
                if back:
                    # The queue that an entry names takes precedence over the stream's name.
                    there = pc.equal(own.take(numbers), rows.column("queue"))
                    _need(pc.all(there, skip_nulls=False).as_py())
                for at, count, first, last in _runs(numbers, rows):
                    before, low, high, groups = held.get(names[at], (0, first, (-1, 0), set()))
                    _need(high <= first and last[0] < _LAST_MS and last[1] < LAST_SEQ)
                    held[names[at]] = before + count, low, last, groups | {group}
    return held


def _runs(numbers: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[int, int, Id, Id]]:
    """Yield runs of rows of one stream: its number, the rows' number, first and last id.

    Raises `_SparkNeeded` if the ids are not in order.
    """
    if not len(numbers):
        return
    ms, seq = milliseconds(rows), rows.column("seq")
    same = pc.equal(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
    ids = [(column.slice(1), column.slice(0, len(column) - 1)) for column in (ms, seq)]
    back = earlier([one for one, _ in ids], [other for _, other in ids])
    _need(not pc.any(pc.and_(same, back)).as_py())
    runs = pc.run_end_encode(numbers)
    ends = runs.run_ends.to_pylist()
    _need(len(ends) <= _RUNS + len(numbers) // _LONG)
    starts = [0, *ends[:-1]]
    marks = [
        list(zip(*(column.take(pa.array(at)).to_pylist() for column in (ms, seq)), strict=True))
        for at in (starts, [end - 1 for end in ends])
    ]
    for number, start, end, first, last in zip(
        runs.values.to_pylist(), starts, ends, *marks, strict=True
    ):
        yield number, end - start, first, last


def _need(holds: bool | None) -> None:
    if not holds:
        raise _SparkNeeded
