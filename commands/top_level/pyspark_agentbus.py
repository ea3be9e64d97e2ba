"""Lets Spark find the source `agentbus` by itself: it loads every top-level module named `pyspark_*`."""

from __future__ import annotations

from agentbus.pipeline.source.data_source import AgentBusSource

DefaultSource = AgentBusSource
