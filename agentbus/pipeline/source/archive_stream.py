"""Reads an archive as it grows, batch by batch, for Spark: each row once, by the commits of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from agentbus.core.errors import UsageError
from agentbus.pipeline.archives.changes import changes
from agentbus.pipeline.archives.delta_table import gone
from agentbus.pipeline.source.archive_reader import FilesReader, changes_reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from agentbus.pipeline.archives.delta_table import ArchiveTable
    from agentbus.pipeline.archives.versions import DataFile
    from agentbus.pipeline.source.options import ArchiveOptions


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a version as a whole, and then what each later one added.

    An offset is `{version, files, snapshot}`: `files` files of `version` have been read, and all of
    earlier versions. Of `snapshot` all files are read; it is None after the option `sinceVersion`.
    """

    def __init__(self, options: ArchiveOptions) -> None:
        if options.version is not None:
            raise UsageError(
                "the option version is not for a stream", hint="begin after one by sinceVersion"
            )
        self._options = options
        self._table: ArchiveTable | None = None
        self._goal: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to its tasks, which need no table.
        return {"_options": self._options, "_table": None, "_goal": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of the first batch."""
        since = self._options.since_version
        if since is None:
            return {"version": -1, "files": 0, "snapshot": None}
        if since > (newest := self._open().snapshot().version):
            raise UsageError(
                f"{self._options.place} has no version {since}", hint=f"the newest is {newest}"
            )
        return {"version": since + 1, "files": 0, "snapshot": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the number of rows after which a batch ends, which has a file at least."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; `start` itself without a newer version."""
        newest = self._open().snapshot().version if self._goal is None else self._goal
        version, done, snapshot = start["version"], start["files"], start["snapshot"]
        if version == -1:
            version = snapshot = newest
        if version > newest:
            return start
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        rows = 0
        while room is not None and version <= newest:
            for file in self._files(version, snapshot)[done:]:
                if rows and rows + file.rows > room:
                    return {"version": version, "files": done, "snapshot": snapshot}
                rows, done = rows + file.rows, done + 1
            version, done = version + 1, 0
        return {"version": newest + 1, "files": 0, "snapshot": snapshot}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the newest version, at which the query will stop."""
        self._goal = self._open().snapshot().version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Choose the files between two offsets."""
        table, snapshot = self._open(), end["snapshot"]
        first, done = start["version"], start["files"]
        if first == -1:
            first = snapshot
        files: list[DataFile] = []
        for version in range(first, end["version"] + (end["files"] > 0)):
            added = self._files(version, snapshot)
            files += added[
                done if version == first else 0 : end["files"]
                if version == end["version"]
                else None
            ]
        newest = table.snapshot()
        replaced = [file.path for file in files if file.path not in newest.files]
        if None in table.place.sizes(replaced):
            raise gone(table.place, first)
        return changes_reader(self._options, files, newest).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files."""
        return FilesReader(self._options.place.target, ()).read(partition)

    def _open(self) -> ArchiveTable:
        if self._table is None:
            self._table, _ = self._options.opened()
        return self._table

    def _files(self, version: int, snapshot: int | None) -> list[DataFile]:
        """Return the files to read of a version, always in the same order."""
        table = self._open()
        if version != snapshot:
            return changes(table, version).added
        return sorted(table.snapshot(version).files.values(), key=lambda file: file.path)
