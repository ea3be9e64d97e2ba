"""Reads an archive for Spark without Spark's own file systems, so a bucket needs no Hadoop jars."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from agentbus.core.stream import position
from agentbus.pipeline.archives.reader import LAST_MS, IdRange, chosen_files
from agentbus.pipeline.replays.reading import ArchiveFile, WantedRows
from agentbus.pipeline.rows import schema, table
from agentbus.pipeline.rows.typed_columns import TYPED
from agentbus.pipeline.source import planning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentbus.pipeline.archives.places import ArchiveTarget
    from agentbus.pipeline.archives.versions import DataFile
    from agentbus.pipeline.source.options import ArchiveOptions

# Rows per batch: some megabytes at 200 bytes per row.
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """A share of an archive's file, and the selection of its rows, to be sent to a task."""

    path: str
    kind: str
    date: str
    streams: tuple[str, ...]
    share: int = 0
    shares: int = 1


class ArchiveLot(InputPartition):
    """The work of one task: files to read, and the range of ids."""

    def __init__(self, target: ArchiveTarget, span: IdRange, parts: Sequence[ArchivePart]) -> None:
        super().__init__(None)
        self.target = target
        self.span = span
        self.parts = parts


class ArchiveReader(DataSourceReader):
    """Reads an archive's rows at one version; without filters, as `BatchReader`."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Choose files by their statistics, split large files, and group small ones by their rows."""
        options = self._options
        table, state = options.opened()
        low, high = options.low, options.high
        span = IdRange(
            None if low is None else position(low), None if high is None else _after(high)
        )
        files = chosen_files(table, state, span)
        names = [name for name in state.positions if name in options.selection]
        parts = (part for file in files for part in self._parts(file, names))
        lots = planning.packed(parts, options.partition_rows)
        return [ArchiveLot(options.place.target, span, lot) for lot in lots]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files."""
        # Spark passes a partition of None if there is nothing to read.
        if not isinstance(partition, ArchiveLot):
            return
        system = partition.target.filesystem()
        for part in partition.parts:
            wanted = WantedRows(part.streams, partition.span)
            with contextlib.closing(ArchiveFile(partition.target, part.path, system)) as file:
                for rows in file.read(_stored(part), file.share(part.share, part.shares), _BATCH):
                    kept = wanted.among(rows)[1]
                    if kept.num_rows:
                        yield _whole(kept, part)

    def _parts(self, file: DataFile, streams: Sequence[str]) -> Iterator[tuple[ArchivePart, int]]:
        """Yield the shares of a file, each with its number of rows, if any row is selected."""
        names = tuple(filter(file.may_hold, streams))
        if names:
            # A task determines its row groups when it opens the file: the table does not list them.
            shares = -(-file.rows // self._options.partition_rows)
            for share in range(shares):
                part = ArchivePart(file.path, file.kind, file.date, names, share, shares)
                yield part, file.rows // shares


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
