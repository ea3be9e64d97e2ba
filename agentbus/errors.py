"""Every error that AgentBus raises, each with the exit code the command line ends with."""

from agentbus.core.errors import *  # noqa: F403
