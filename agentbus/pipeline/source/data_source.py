"""The Spark data source `agentbus`: reads the streams of a project, and writes rows to a project.

spark.dataSource.register(AgentBusSource)
spark.read.format("agentbus").option("project", "app").option("streams", "queues").load()
rows.write.format("agentbus").option("queue", "mail").mode("append").save()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from agentbus.core.errors import UsageError
from agentbus.pipeline.rows import table
from agentbus.pipeline.rows.schema import DDL
from agentbus.pipeline.sink.sink_options import sink
from agentbus.pipeline.sink.sink_writer import SinkWriter, StreamSinkWriter
from agentbus.pipeline.source.archive_reader import archive_reader
from agentbus.pipeline.source.archive_stream import ArchiveStreamReader
from agentbus.pipeline.source.batch_reader import BatchReader
from agentbus.pipeline.source.growing_reader import GrowingReader
from agentbus.pipeline.source.options import ArchiveOptions, Options, is_archive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from agentbus.core.settings import Settings


class AgentBusSource(DataSource):
    """Reads the streams of a project as rows of the documented schema, and writes rows to a project.

    Options of a read: `url`, `project`, `streams`, `from`, `to`, `partitionRows`, `pageRows`,
    `maxRowsPerTrigger`; without a url or a project, what the driver's environment and files set.
    Options of a write: `queue`, `topic` or `notes`, and those of `docs/how-to/spark-sink.md`.
    """

    # Overrides the options and the driver's environment.
    bound_to: Settings | None = None

    @classmethod
    def name(cls) -> str:
        return "agentbus"

    def schema(self) -> str:
        """Return the columns of rows; an archive has additional columns."""
        if not is_archive(self.options):
            self._read_options()
            return DDL
        ArchiveOptions(self.options).opened()
        return ", ".join(f"`{name}` {kind}" for name, kind in table.columns().items())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the existing entries, on the server or in an archive."""
        if is_archive(self.options):
            _refuse_other(schema, table.columns())
            return archive_reader(ArchiveOptions(self.options))
        _refuse_other(schema, table.of_streams())
        return BatchReader(self._read_options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of existing and new entries, of the server or of an archive."""
        if is_archive(self.options):
            _refuse_other(schema, table.columns())
            return ArchiveStreamReader(ArchiveOptions(self.options))
        _refuse_other(schema, table.of_streams())
        return GrowingReader(self._read_options())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer of rows. Raises `UsageError` for an invalid mode, option or column."""
        return SinkWriter(sink(self.options, schema, self.bound_to, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a writer of the batches of a query, as `writer` does."""
        return StreamSinkWriter(sink(self.options, schema, self.bound_to, overwrite=overwrite))

    def _read_options(self) -> Options:
        return Options(self.options, self.bound_to)


def _refuse_other(given: StructType, own: Mapping[str, str]) -> None:
    """Raise `UsageError` for a schema other than the source's."""
    # Do not parse the type: parsing needs a session, which Spark's Python processes lack.
    if [(field.name, field.dataType.simpleString()) for field in given.fields] != [*own.items()]:
        raise UsageError(
            "the source agentbus has its own schema, and takes no other",
            hint="leave out schema(…); choose columns by select, and read a payload by from_json",
        )
