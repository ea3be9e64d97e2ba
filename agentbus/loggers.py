"""The operations log by way of `logging`, for programs that run on."""

from agentbus.core.loggers import *  # noqa: F403
