"""What to connect to, and as whom: flags over environment over files over defaults."""

from agentbus.core.settings import *  # noqa: F403
