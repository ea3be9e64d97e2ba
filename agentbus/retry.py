"""When a failed task is tried again, and what a handler raises to say so itself."""

from agentbus.queues.retry import *  # noqa: F403
