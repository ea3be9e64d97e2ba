"""Reads an archive for Spark without Spark's own file systems, so a bucket needs no Hadoop jars."""

from __future__ import annotations

import contextlib
import datetime
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from agentbus.core.errors import UsageError
from agentbus.core.stream import position
from agentbus.pipeline.archives.changes import changes
from agentbus.pipeline.archives.file_selection import LAST_MS, IdRange, chosen_files
from agentbus.pipeline.replays.reading import ArchiveFile, WantedRows
from agentbus.pipeline.rows import schema, table
from agentbus.pipeline.rows.attempt_rows import PLACE
from agentbus.pipeline.rows.typed_columns import TYPED
from agentbus.pipeline.source import planning
from agentbus.pipeline.source.options import PARTITION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from agentbus.pipeline.archives.places import ArchiveTarget
    from agentbus.pipeline.archives.versions import ArchiveSnapshot, DataFile
    from agentbus.pipeline.source.options import ArchiveOptions

EVERYTHING = IdRange()
# Rows per batch: some megabytes at 200 bytes per row.
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class SelectedFile:
    """A file to read, with the streams to select in it; None: all.

    Of a file that was replaced, only rows that are still in the files `among` are read, if any are named.
    """

    file: DataFile
    streams: tuple[str, ...] | None = None
    among: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """A share of an archive's file, and the selection of its rows, to be sent to a task."""

    path: str
    kind: str
    date: str
    streams: tuple[str, ...] | None
    share: int = 0
    shares: int = 1
    among: tuple[str, ...] = ()


class ArchiveLot(InputPartition):
    """The work of one task: files to read, and the range of ids."""

    def __init__(self, target: ArchiveTarget, span: IdRange, parts: Sequence[ArchivePart]) -> None:
        super().__init__(None)
        self.target = target
        self.span = span
        self.parts = parts


class FilesReader(DataSourceReader):
    """Reads data files; without filters, as `BatchReader`."""

    def __init__(
        self,
        target: ArchiveTarget,
        files: Sequence[SelectedFile],
        span: IdRange = EVERYTHING,
        partition_rows: int = PARTITION,
    ) -> None:
        self._target = target
        self._files = files
        self._span = span
        self._rows = partition_rows

    def partitions(self) -> list[InputPartition]:
        """Split large files, and group small ones by their rows."""
        parts = (part for selected in self._files for part in self._parts(selected))
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
            still = _rows_of(partition.target, part, system)
            with contextlib.closing(ArchiveFile(partition.target, part.path, system)) as file:
                for rows in file.read(_stored(part), file.share(part.share, part.shares), _BATCH):
                    kept = rows if wanted is None else wanted.among(rows)[1]
                    if still is not None:
                        kept = kept.filter(pc.is_in(_identity(kept, part.kind), still))
                    if kept.num_rows:
                        yield _whole(kept, part)

    def _parts(self, selected: SelectedFile) -> Iterator[tuple[ArchivePart, int]]:
        """Yield the shares of a file, each with its number of rows."""
        file = selected.file
        # A task determines its row groups when it opens the file: the table does not list them.
        shares = max(1, -(-file.rows // self._rows))
        for share in range(shares):
            part = ArchivePart(
                file.path,
                file.kind,
                file.date,
                selected.streams,
                share,
                shares,
                selected.among,
            )
            yield part, file.rows // shares


def archive_reader(options: ArchiveOptions) -> FilesReader:
    """Return the reader of an archive at one version, or of what it has since another."""
    table, state = options.opened()
    since = options.since_version
    if since is None:
        files = chosen_files(table, state, _span(options))
        return _reader(options, [SelectedFile(file) for file in files], state)
    if since > state.version:
        raise UsageError(f"{table.place} has no version {since}", hint="give an older one")
    versions = range(since + 1, state.version + 1)
    added = [file for version in versions for file in changes(table, version).added]
    return changes_reader(options, added, table.snapshot())


def changes_reader(
    options: ArchiveOptions, files: Iterable[DataFile], newest: ArchiveSnapshot
) -> FilesReader:
    """Return the reader of files that older versions added, without the rows deleted since."""
    selected = []
    for file in files:
        among: tuple[str, ...] = ()
        if file.path not in newest.files:
            # Rows may have been deleted when the file was replaced.
            among = tuple(
                other.path
                for other in newest.files.values()
                if (other.kind, other.date) == (file.kind, file.date)
            )
            # Without any other file, all of its rows were deleted.
            if not among:
                continue
        selected.append(SelectedFile(file, among=among))
    return _reader(options, selected, newest)


def _reader(
    options: ArchiveOptions, files: Iterable[SelectedFile], newest: ArchiveSnapshot
) -> FilesReader:
    """Return the reader of files that may hold rows of the selected streams."""
    names = [name for name in newest.positions if name in options.selection]
    chosen = [
        replace(each, streams=held)
        for each in files
        if (held := tuple(filter(each.file.may_hold, names)))
    ]
    return FilesReader(options.place.target, chosen, _span(options), options.partition_rows)


def _span(options: ArchiveOptions) -> IdRange:
    low, high = options.low, options.high
    return IdRange(None if low is None else position(low), None if high is None else _after(high))


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
            return FilesReader(target, [SelectedFile(file) for file in files])

    return DataFiles


def _after(entry_id: str) -> tuple[int, int]:
    milliseconds, sequence = position(entry_id)
    # The limit is far beyond the ids of any clock.
    return min(milliseconds, LAST_MS), sequence + 1


def _stored(part: ArchivePart) -> list[str]:
    """Return the columns that a file may have; its kind is in its path."""
    return [*(name for name in schema.COLUMNS if name != "kind"), *TYPED.get(part.kind, ())]


def _rows_of(target: ArchiveTarget, part: ArchivePart, system: tuple[Any, str]) -> pa.Array | None:
    """Return the identities of the rows of a part that are still in the archive; None for all."""
    if not part.among:
        return None
    wanted = WantedRows(part.streams or (), EVERYTHING)
    identities = []
    for path in part.among:
        with contextlib.closing(ArchiveFile(target, path, system)) as file:
            columns = ("stream", "time", "seq", "id", "fields")
            every = file.read(columns, range(file.groups), _BATCH)
            identities += [_identity(wanted.among(rows)[1], part.kind) for rows in every]
    return pa.concat_arrays(identities) if identities else pa.array([], pa.string())


def _identity(rows: pa.RecordBatch, kind: str) -> pa.Array:
    """Return what tells each row of a kind from the others."""
    names = [rows.column("stream"), rows.column("id")]
    if kind == schema.ATTEMPT:
        place = pc.map_lookup(rows.column("fields"), query_key=PLACE, occurrence="first")
        names.append(pc.fill_null(place, ""))
    return pc.binary_join_element_wise(*(name.cast(pa.string()) for name in names), " ")


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
