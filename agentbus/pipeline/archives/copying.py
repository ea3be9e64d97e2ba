"""The Spark task of an archive: reads ranges of streams, writes Parquet files, and reports them.

Spark schedules, distributes and retries the tasks, but the rows do not pass through the JVM: Arrow's
writer writes them in the process that decoded them. Spark's writer takes rows one at a time from
another process.
"""

from __future__ import annotations

import contextlib
import gc
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from agentbus.core.settings import Settings
from agentbus.pipeline.archives.directory import begin_flush, told
from agentbus.pipeline.archives.places import ArchiveTarget
from agentbus.pipeline.archives.versions import START, DataFile, file_path, later
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.decoding import gap
from agentbus.pipeline.rows.masking import NOTHING, Masking
from agentbus.pipeline.rows.streams import StreamGap
from agentbus.pipeline.source.planning import Range
from agentbus.pipeline.source.range_reader import RangeReader

# The path of a file contains the kind.
_KEPT = [field for field in schema.ARROW if field.name != "kind"]
FILE = pa.schema(_KEPT, metadata={"agentbus.schema": str(schema.VERSION)})
# Smaller row groups compress worse; larger ones, or large rows, take more memory.
_GROUP, _GROUP_BYTES = 65_536, 64_000_000
# Number of values that Arrow encodes at once: with the default of 1,024, short texts take a twelfth
# longer.
_ENCODED = 8_192
# Columns with a dictionary, as their values repeat; trying a dictionary for payloads costs more
# than it saves.
_REPEATED = [
    *("version", "stream", "agent", "topic", "event", "queue"),
    *("fields.key_value.key", "fields.key_value.value"),
]
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class CopyJob:
    """The parameters that all tasks of one batch share."""

    settings: Settings
    target: ArchiveTarget
    batch: str
    page: int
    masking: Masking = NOTHING
    salt: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Copied:
    """A written file, and what it holds of each stream: number of entries, and highest id."""

    file: DataFile
    streams: Mapping[str, tuple[int, str]]


def copy(job: CopyJob, ranges: Sequence[Range]) -> list[Copied]:
    """Write the entries of ranges into files by kind and day, and return the files."""
    with (
        _without_collector(),
        FileWriter(job) as writer,
        RangeReader(job.settings, page=job.page) as reader,
    ):
        for rows in reader.read(ranges):
            writer.add(job.masking.hidden(rows, job.salt))
        return writer.finish()


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable Python's search for reference cycles.

    Entries form no cycles, but searching so many takes a twelfth of the time. Spark also searches
    after each task: existing objects, such as all modules, are excluded from that.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def write_gaps(job: CopyJob, gaps: Iterable[StreamGap]) -> list[Copied]:
    """Write the rows that represent lost entries, and return the files."""
    with FileWriter(job) as writer:
        for found in gaps:
            writer.add(gap(found))
        return writer.finish()


class FileWriter:
    """Writes rows into one file for each kind and day; leaves no file unless it finishes."""

    def __init__(self, job: CopyJob) -> None:
        self._job = job
        self._filesystem, self._root = job.target.filesystem()
        # The files of a retried task must not collide with those of its first attempt.
        self._part = uuid.uuid4().hex[:12]
        self._open: dict[tuple[str, int], Output] = {}
        self._finished = False

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._finished:
            for output in self._open.values():
                output.abandon()

    def add(self, rows: pa.RecordBatch) -> None:
        with told("write to", self._root):
            self._add(rows)

    def _add(self, rows: pa.RecordBatch) -> None:
        kind = rows.column("kind")[0].as_py()
        days = rows.column("time").cast(pa.int64())
        days = pc.divide(days, _DAY_MS * 1000)
        ends = pc.min_max(days).as_py()
        for day in pc.unique(days).to_pylist() if ends["min"] != ends["max"] else [ends["min"]]:
            part = rows if ends["min"] == ends["max"] else rows.filter(pc.equal(days, day))
            self._output(kind, day).add(part)

    def finish(self) -> list[Copied]:
        with told("write to", self._root):
            files = [output.close() for output in self._open.values()]
        self._finished = True
        return files

    def _output(self, kind: str, day: int) -> Output:
        output = self._open.get((kind, day))
        if output is None:
            date = str(pa.scalar(day, pa.int32()).cast(pa.date32()))
            job = self._job
            path = file_path(kind, date, job.batch, self._part)
            output = Output(self._filesystem, f"{self._root}/{path}", path, kind, date)
            self._open[(kind, day)] = output
        return output


@dataclass(slots=True)
class Output:
    """A data file that is being written; rows of several batches become one row group."""

    filesystem: Any
    name: str
    path: str
    kind: str
    date: str
    schema: pa.Schema = FILE
    group: int = _GROUP
    rows: int = 0
    from_ms: int = 2**63 - 1
    to_ms: int = 0
    streams: dict[str, tuple[int, str]] = field(default_factory=dict)
    queues: tuple[str, str] | None = None
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _number: int = 0
    _size: int = 0
    _writer: Any = None
    _sink: Any = None

    def add(self, rows: pa.RecordBatch) -> None:
        self._count(rows)
        self._waiting.append(rows)
        self._number += rows.num_rows
        self._size += rows.nbytes
        if self._number >= self.group or self._size >= _GROUP_BYTES:
            self._write()

    def close(self) -> Copied:
        if self._waiting:
            self._write()
        self._writer.close()
        self._sink.close()
        size = self.filesystem.get_file_info(self.name).size
        file = DataFile(
            *(self.path, self.kind, self.date, self.rows, size, self.from_ms, self.to_ms),
            (min(self.streams), max(self.streams)),
            self.queues,
        )
        return Copied(file, self.streams)

    def abandon(self) -> None:
        if self._sink is not None:
            # On a full disk, closing may fail, and the writer may not even exist.
            for part in (self._writer, self._sink):
                with contextlib.suppress(OSError):
                    if part is not None:
                        part.close()
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(self.name)

    def _write(self) -> None:
        if self._writer is None:
            if isinstance(self.filesystem, fs.LocalFileSystem):
                self.filesystem.create_dir(self.name.rpartition("/")[0], recursive=True)
            self._sink = self.filesystem.open_output_stream(self.name)
            typed = [name for name in self.schema.names if name not in schema.COLUMNS]
            self._writer = pq.ParquetWriter(
                self._sink,
                self.schema,
                compression="zstd",
                use_dictionary=[*_REPEATED, *typed],
                write_batch_size=_ENCODED,
            )
        table = pa.Table.from_batches(self._waiting).select(self.schema.names)
        self._writer.write_table(table.cast(self.schema), row_group_size=self._number)
        self._waiting, self._number, self._size = [], 0, 0
        if isinstance(self.filesystem, fs.LocalFileSystem):
            begin_flush(self.name)

    def _count(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        moments = pc.min_max(rows.column("time").cast(pa.int64())).as_py()
        self.from_ms = min(self.from_ms, moments["min"] // 1000)
        self.to_ms = max(self.to_ms, moments["max"] // 1000)
        named = pc.min_max(rows.column("queue")).as_py()
        if named["min"] is not None:
            known = self.queues or (named["min"], named["max"])
            self.queues = min(known[0], named["min"]), max(known[1], named["max"])
        ids = rows.column("id")
        runs = pc.run_end_encode(rows.column("stream"))
        start = 0
        for end, stream in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            number, last = self.streams.get(stream, (0, START))
            if self.kind == schema.ATTEMPT:
                # An entry has several rows, which are adjacent.
                number += pc.count_distinct(ids.slice(start, end - start)).as_py()
            else:
                number += end - start
            self.streams[stream] = number, later(last, ids[end - 1].as_py())
            start = end
