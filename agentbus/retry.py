"""Retries of failed tasks: the backoff, and the exceptions that settle a task otherwise."""

from agentbus.queues.retry import *  # noqa: F403
