"""The data pipeline on Spark: archive the streams, replay them, report on them."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import ConfigError
from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.pipeline.archived import read as read
    from agentbus.pipeline.archiving import Archiver as Archiver, archive as archive
    from agentbus.pipeline.compacting import compact as compact
    from agentbus.pipeline.opening import session as session
    from agentbus.pipeline.replays import replay as replay
    from agentbus.pipeline.source import AgentBusSource as AgentBusSource
    from agentbus.pipeline.verifying import status as status, verify as verify

# Told here, before any module of the pipeline loads what is not there.
for _needed in ("pyspark", "pyarrow"):
    if importlib.util.find_spec(_needed) is None:
        raise ConfigError(
            f"the pipeline needs {_needed}, which is not installed: it comes with an extra",
            hint="pip install 'agentbus-toolkit[pipeline]'",
        )

# Loaded when first used: a look at an archive's status needs no Spark.
_HOMES = {
    "session": "opening",
    "AgentBusSource": "source",
    "Archiver": "archiving",
    "archive": "archiving",
    "compact": "compacting",
    "status": "verifying",
    "verify": "verifying",
    "read": "archived",
    "replay": "replays",
}
__all__ = ["reports", *_HOMES]
_named = lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "reports":
        return importlib.import_module("agentbus.pipeline.reports")
    return _named(name)
