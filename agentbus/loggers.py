"""The operations log through `logging`, for long-running programs."""

from agentbus.core.loggers import *  # noqa: F403
