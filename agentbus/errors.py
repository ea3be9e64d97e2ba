"""All errors that AgentBus raises, each with its exit code on the command line."""

from agentbus.core.errors import *  # noqa: F403
