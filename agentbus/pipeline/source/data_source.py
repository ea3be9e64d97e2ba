"""The Spark data source `agentbus`: reads the streams of a project, and writes rows to a project.

spark.dataSource.register(AgentBusSource)
spark.read.format("agentbus").option("project", "app").option("streams", "queues").load()
rows.write.format("agentbus").option("queue", "mail").mode("append").save()
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from agentbus.pipeline.rows.schema import DDL
from agentbus.pipeline.sink.sink_options import sink
from agentbus.pipeline.sink.sink_writer import SinkWriter, StreamSinkWriter
from agentbus.pipeline.source.batch_reader import BatchReader, FilteringReader
from agentbus.pipeline.source.growing_reader import GrowingReader
from agentbus.pipeline.source.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from agentbus.core.settings import Settings

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class AgentBusSource(DataSource):
    """Reads the streams of a project as rows of the documented schema, and writes rows to a project.

    Options of a read: `url`, `project`, `streams`, `from`, `to`, `partitionRows`, `pageRows`,
    `maxRowsPerTrigger`; without a url or a project, what the driver's environment and files set.
    Options of a write: `queue`, `topic` or `notes`, and those of `docs/how-to/spark-sink.md`.
    """

    # Replaces what the options and the driver's environment say.
    bound_to: Settings | None = None

    @classmethod
    def name(cls) -> str:
        return "agentbus"

    def schema(self) -> str:
        self._read_options()
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the entries that exist now."""
        # Spark refuses a reader that takes filters in a session where that is switched off.
        return (FilteringReader if _filters_come() else BatchReader)(self._read_options())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of the entries that exist, and of new ones."""
        return GrowingReader(self._read_options())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer of rows. Raises `UsageError` for a mode, an option or a column that is wrong."""
        return SinkWriter(sink(self.options, schema, self.bound_to, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a writer of the batches of a query, as `writer` does."""
        return StreamSinkWriter(sink(self.options, schema, self.bound_to, overwrite=overwrite))

    def _read_options(self) -> Options:
        return Options(self.options, self.bound_to)


def _filters_come() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING
