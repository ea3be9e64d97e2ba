"""Reads an archive's files for a replay without the JVM: each stream's rows in order.

Spark's tasks read the rows to publish as Arrow batches; passing them through the JVM, which handles
rows one at a time, would cost several times as much.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentbus.core.errors import Unhealthy
from agentbus.pipeline.archives.directory import trouble
from agentbus.pipeline.archives.file_selection import LAST_MS, LAST_SEQ, IdRange
from agentbus.pipeline.archives.places import ArchiveTarget
from agentbus.pipeline.replays.slices import COLUMNS
from agentbus.pipeline.rows import schema

Id = tuple[int, int]
_BEFORE: Id = (-1, 0)
# Approximate bytes, and maximum rows, per batch: if long values repeat, a file is much smaller than
# its rows.
_BATCH_BYTES, _BATCH = 8_000_000, 2_000
_OWN = {field.name: field for field in schema.ARROW}
_READ = ("stream", "time", "seq", "id", "agent", "topic", "event", "payload", "fields")


@dataclass(frozen=True, slots=True)
class FileGroups:
    """Some row groups of a file, by its path in the log."""

    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The rows that one task reads: row groups in order, and the streams to select in them.

    `numbers` are the streams' numbers in the replay. The task reads each stream's rows in `span`
    that follow `after` (None: all), up to `last`.
    """

    target: ArchiveTarget
    files: tuple[FileGroups, ...]
    span: IdRange
    numbers: Mapping[str, int]
    last: Mapping[str, Id]


class ArchiveFile:
    """An open data file; raises `Unhealthy` if it cannot be read."""

    def __init__(
        self, target: ArchiveTarget, path: str, system: tuple[Any, str] | None = None
    ) -> None:
        filesystem, root = system or target.filesystem()
        self._name = f"{root}/{path}"
        self._path = path
        with self._told():
            self._file = pq.ParquetFile(
                self._name, filesystem=filesystem, pre_buffer=target.scheme != "file"
            )

    @property
    def groups(self) -> int:
        number: int = self._file.num_row_groups
        return number

    def share(self, number: int, of: int) -> list[int]:
        """Return the row groups of share `number` of `of`, with similar numbers of rows."""
        before, found = 0, []
        for group in range(self.groups):
            rows = self._file.metadata.row_group(group).num_rows
            # A row group belongs to the share that contains its middle. All numbers are doubled, to
            # be integers.
            if (2 * before + rows) * of // (2 * self._file.metadata.num_rows) == number:
                found.append(group)
            before += rows
        return found

    def close(self) -> None:
        self._file.close(force=True)

    def read(
        self, columns: Sequence[str], groups: Sequence[int], size: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield row groups as batches of at most `size` rows."""
        with self._told():
            held = set(self._file.schema_arrow.names)
            for rows in self._file.iter_batches(
                batch_size=size or self._fitting(groups),
                row_groups=list(groups),
                columns=[name for name in columns if name in held],
                use_threads=False,
            ):
                yield _as_written(rows)

    def _fitting(self, groups: Sequence[int]) -> int:
        """Return the number of rows of average size that are read at once."""
        found = [self._file.metadata.row_group(group) for group in groups]
        size = sum(group.total_byte_size for group in found)
        rows = sum(group.num_rows for group in found)
        fitting: int = min(_BATCH, _BATCH_BYTES * rows // max(size, 1))
        return max(1, fitting)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, pa.ArrowException) as error:
            raise Unhealthy(
                f"the archive's data file {self._path} is missing or not what was written",
                hint="restore it from a copy; what was compacted while it was read is read again",
            ) from error
        except OSError as error:
            raise trouble("read", self._name, error) from error


class WantedRows:
    """Selects rows by stream and id, column by column.

    `after` and `last` are ids by stream: rows after the first, up to the second, are selected.
    """

    def __init__(
        self,
        names: Sequence[str],
        span: IdRange,
        after: Mapping[str, Id] | None = None,
        last: Mapping[str, Id] | None = None,
    ) -> None:
        self._names = pa.array(names, pa.string())
        self._start, self._end = (
            None if end is None else _clamped(end) for end in (span.start, span.end)
        )
        self._after, self._last = (
            None if bounds is None else _columns([_clamped(bounds[name]) for name in names])
            for bounds in (after, last)
        )

    def among(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
        """Return the selected rows, and the stream number of each."""
        numbers = pc.index_in(rows.column("stream"), self._names)
        at = milliseconds(rows), rows.column("seq")
        held = [pc.is_valid(numbers)]
        if self._start is not None:
            held.append(pc.invert(earlier(at, self._start)))
        if self._end is not None:
            held.append(earlier(at, self._end))
        if self._after is not None:
            held.append(earlier([bound.take(numbers) for bound in self._after], at))
        if self._last is not None:
            held.append(pc.invert(earlier([bound.take(numbers) for bound in self._last], at)))
        mask = functools.reduce(pc.and_, held)
        if pc.all(mask, skip_nulls=False).as_py():
            return numbers, rows
        return numbers.filter(mask), rows.filter(mask)


def batches(share: TaskShare, after: Mapping[str, Id]) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows to publish, with the columns of `slices.COLUMNS`.

    `after` has the last published entry of each stream, if any.
    """
    names = list(share.numbers)
    before = {name: after.get(name, _BEFORE) for name in names}
    wanted = WantedRows(names, share.span, before, share.last)
    known = pa.array(share.numbers.values(), pa.int32())
    system = share.target.filesystem()
    for part in share.files:
        with contextlib.closing(ArchiveFile(share.target, part.path, system)) as file:
            for rows in file.read(_READ, part.groups):
                numbers, kept = wanted.among(rows)
                nothing = pa.nulls(kept.num_rows, pa.string())
                own = {"number": known.take(numbers), "target": nothing, "priority": nothing}
                columns = [own[name] if name in own else kept.column(name) for name in COLUMNS]
                yield pa.RecordBatch.from_arrays(columns, list(COLUMNS))


def milliseconds(rows: pa.RecordBatch) -> pa.Array:
    """Return the milliseconds in the rows' ids."""
    return pc.divide(rows.column("time").cast(pa.int64()), 1000)


def earlier(one: Sequence[Any], other: Sequence[Any]) -> pa.Array:
    """Return for each row whether one id precedes another, each given as two columns or numbers."""
    same = pc.and_(pc.equal(one[0], other[0]), pc.less(one[1], other[1]))
    return pc.or_(pc.less(one[0], other[0]), same)


def _as_written(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in the types of the schema: another engine may have rewritten a file with its own."""
    names = rows.schema.names
    own = [_OWN.get(name, rows.schema.field(name)) for name in names]
    if all(field.type == rows.schema.field(field.name).type for field in own):
        return rows
    cast = [column.cast(field.type) for column, field in zip(rows.columns, own, strict=True)]
    return pa.RecordBatch.from_arrays(cast, names)


def _columns(ids: Sequence[Id]) -> list[pa.Array]:
    return [pa.array([one[n] for one in ids], pa.int64()) for n in (0, 1)]


def _clamped(one: Id) -> Id:
    """Return an id limited to the range of the rows' columns."""
    return min(one[0], LAST_MS), min(one[1], LAST_SEQ)
