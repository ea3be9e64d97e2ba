"""The data source with a server of its own: for programs of ours, whose settings may hold a password."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from agentbus.pipeline.source.data_source import AgentBusSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSource

    from agentbus.core.settings import Settings


def source(settings: Settings) -> type[DataSource]:
    """Return this source bound to settings, to be registered; it has a name of its own.

    Python pickles such a class whole, so that what it holds, a password too, reaches Spark's processes
    without standing in an option, a plan or a log, and whatever their environment is.
    """
    name = f"agentbus-{secrets.token_hex(4)}"

    class Bound(AgentBusSource):
        def __init__(self, options: MutableMapping[str, str]) -> None:
            super().__init__(options)
            self._options.settings = settings

        @classmethod
        def name(cls) -> str:
            return name

    return Bound
