"""The data pipeline on Spark: archive the streams, replay them, report on them."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import ConfigError
from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.pipeline.archives.archiver import Archiver as Archiver, archive as archive
    from agentbus.pipeline.archives.compaction import compact as compact
    from agentbus.pipeline.archives.files import archive_files as archive_files
    from agentbus.pipeline.archives.forgetting import expire as expire, forget as forget
    from agentbus.pipeline.archives.location import place as place
    from agentbus.pipeline.archives.reader import read as read
    from agentbus.pipeline.archives.verify import status as status, verify as verify
    from agentbus.pipeline.payloads.tables import follow as follow
    from agentbus.pipeline.replays.replay import replay as replay
    from agentbus.pipeline.source.data_source import AgentBusSource as AgentBusSource
    from agentbus.pipeline.source.progress import query_lag as query_lag
    from agentbus.pipeline.spark.session import session as session

# Check for the packages before a module of the pipeline imports them.
for _needed in ("pyspark", "pyarrow", "deltalake"):
    if importlib.util.find_spec(_needed) is None:
        raise ConfigError(
            f"the pipeline needs {_needed}, which is not installed: it comes with an extra",
            hint="pip install 'agentbus-toolkit[pipeline]'",
        )

# A name's module is loaded when the name is first used: reading an archive's status needs no Spark.
_HOMES = {
    "session": "agentbus.pipeline.spark.session",
    "AgentBusSource": "agentbus.pipeline.source.data_source",
    "query_lag": "agentbus.pipeline.source.progress",
    "Archiver": "agentbus.pipeline.archives.archiver",
    "archive": "agentbus.pipeline.archives.archiver",
    "compact": "agentbus.pipeline.archives.compaction",
    "forget": "agentbus.pipeline.archives.forgetting",
    "expire": "agentbus.pipeline.archives.forgetting",
    "status": "agentbus.pipeline.archives.verify",
    "verify": "agentbus.pipeline.archives.verify",
    "read": "agentbus.pipeline.archives.reader",
    "place": "agentbus.pipeline.archives.location",
    "archive_files": "agentbus.pipeline.archives.files",
    "replay": "agentbus.pipeline.replays.replay",
    "follow": "agentbus.pipeline.payloads.tables",
}
__all__ = ["reports", *_HOMES]
_named = lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "reports":
        return importlib.import_module("agentbus.pipeline.reports")
    return _named(name)
