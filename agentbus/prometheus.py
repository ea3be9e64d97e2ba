"""Tells Prometheus the figures of a project, asked of the server at each scrape."""

from agentbus.admin.prometheus import *  # noqa: F403
