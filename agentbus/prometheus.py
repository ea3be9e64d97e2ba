"""The Prometheus exporter: reads a project's metrics from the server at each scrape."""

from agentbus.admin.prometheus import *  # noqa: F403
