"""Registers the source `agentbus` with Spark, which loads every top-level module `pyspark_*`."""

from __future__ import annotations

from agentbus.pipeline.source.data_source import AgentBusSource

DefaultSource = AgentBusSource
