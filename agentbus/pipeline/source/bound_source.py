"""The data source bound to settings, which may hold a password, for our own programs."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from agentbus.pipeline.source.data_source import AgentBusSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from agentbus.core.settings import Settings


def source(settings: Settings) -> type[DataSource]:
    """Return the source bound to settings, with its own name, to be registered.

    Python pickles such a class by value, so that its settings, and a password in them, reach
    Spark's processes regardless of their environment, without appearing in an option, plan or log.
    """
    name = f"agentbus-{secrets.token_hex(4)}"

    class Bound(AgentBusSource):
        bound_to = settings

        @classmethod
        def name(cls) -> str:
            return name

    return Bound
