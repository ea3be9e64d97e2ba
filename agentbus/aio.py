"""The asynchronous bus: the same verbs, awaited."""

from agentbus.client.aio import *  # noqa: F403
