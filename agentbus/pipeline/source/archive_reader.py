"""Reads an archive for Spark without Spark's own file systems, so a bucket needs no Hadoop jars."""

from __future__ import annotations

import contextlib
import datetime
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from agentbus.core.stream import position
from agentbus.pipeline.archives.file_selection import LAST_MS, IdRange, chosen_files
from agentbus.pipeline.replays.reading import ArchiveFile, WantedRows
from agentbus.pipeline.rows import schema, table
from agentbus.pipeline.rows.typed_columns import TYPED
from agentbus.pipeline.source import planning
from agentbus.pipeline.source.options import PARTITION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from agentbus.pipeline.archives.places import ArchiveTarget
    from agentbus.pipeline.archives.versions import DataFile
    from agentbus.pipeline.source.options import ArchiveOptions

EVERYTHING = IdRange()
# Rows per batch: some megabytes at 200 bytes per row.
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """A share of an archive's file, and the selection of its rows, to be sent to a task."""

    path: str
    kind: str
    date: str
    streams: tuple[str, ...] | None
    share: int = 0
    shares: int = 1


class ArchiveLot(InputPartition):
    """The work of one task: files to read, and the range of ids."""

    def __init__(self, target: ArchiveTarget, span: IdRange, parts: Sequence[ArchivePart]) -> None:
        super().__init__(None)
        self.target = target
        self.span = span
        self.parts = parts


class FilesReader(DataSourceReader):
    """Reads data files, each with the streams to select in it; without filters, as `BatchReader`."""

    def __init__(
        self,
        target: ArchiveTarget,
        files: Sequence[tuple[DataFile, tuple[str, ...] | None]],
        span: IdRange = EVERYTHING,
        partition_rows: int = PARTITION,
    ) -> None:
        self._target = target
        self._files = files
        self._span = span
        self._rows = partition_rows

    def partitions(self) -> list[InputPartition]:
        """Split large files, and group small ones by their rows."""
        parts = (part for file, names in self._files for part in self._parts(file, names))
        lots = planning.packed(parts, self._rows)
        return [ArchiveLot(self._target, self._span, lot) for lot in lots]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files."""
        # Spark passes a partition of None if there is nothing to read.
        if not isinstance(partition, ArchiveLot):
            return
        system = partition.target.filesystem()
        for part in partition.parts:
            wanted = None if part.streams is None else WantedRows(part.streams, partition.span)
            with contextlib.closing(ArchiveFile(partition.target, part.path, system)) as file:
                for rows in file.read(_stored(part), file.share(part.share, part.shares), _BATCH):
                    kept = rows if wanted is None else wanted.among(rows)[1]
                    if kept.num_rows:
                        yield _whole(kept, part)

    def _parts(
        self, file: DataFile, names: tuple[str, ...] | None
    ) -> Iterator[tuple[ArchivePart, int]]:
        """Yield the shares of a file, each with its number of rows."""
        # A task determines its row groups when it opens the file: the table does not list them.
        shares = max(1, -(-file.rows // self._rows))
        for share in range(shares):
            part = ArchivePart(file.path, file.kind, file.date, names, share, shares)
            yield part, file.rows // shares


def archive_reader(options: ArchiveOptions) -> FilesReader:
    """Return the reader of an archive at one version; it chooses files by their statistics."""
    table, state = options.opened()
    low, high = options.low, options.high
    span = IdRange(None if low is None else position(low), None if high is None else _after(high))
    names = [name for name in state.positions if name in options.selection]
    files = [
        (file, held)
        for file in chosen_files(table, state, span)
        if (held := tuple(filter(file.may_hold, names)))
    ]
    return FilesReader(options.place.target, files, span, options.partition_rows)


def files_source(target: ArchiveTarget, files: Sequence[DataFile]) -> type[DataSource]:
    """Return a source of all rows of data files, with its own name, to be registered."""
    name = f"agentbus-{secrets.token_hex(8)}"

    class DataFiles(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return ", ".join(f"`{name}` {kind}" for name, kind in table.columns().items())

        def reader(self, schema: StructType) -> DataSourceReader:
            return FilesReader(target, [(file, None) for file in files])

    return DataFiles


def _after(entry_id: str) -> tuple[int, int]:
    milliseconds, sequence = position(entry_id)
    # The limit is far beyond the ids of any clock.
    return min(milliseconds, LAST_MS), sequence + 1


def _stored(part: ArchivePart) -> list[str]:
    """Return the columns that a file may have; its kind is in its path."""
    return [*(name for name in schema.COLUMNS if name != "kind"), *TYPED.get(part.kind, ())]


def _whole(rows: pa.RecordBatch, part: ArchivePart) -> pa.RecordBatch:
    """Return rows with all columns of an archive."""
    fixed = {"kind": part.kind, "date": datetime.date.fromisoformat(part.date)}
    arrays = []
    for field in table.arrow():
        if field.name in fixed:
            arrays.append(pa.repeat(pa.scalar(fixed[field.name], field.type), rows.num_rows))
        elif field.name in rows.schema.names:
            found = rows.column(field.name)
            arrays.append(found if found.type == field.type else found.cast(field.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=table.arrow())
