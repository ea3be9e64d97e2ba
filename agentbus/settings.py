"""Settings: from arguments, the environment, configuration files, and defaults, in this order."""

from agentbus.core.settings import *  # noqa: F403
