"""Retries of failed tasks: the backoff, and the exceptions by which a handler retries, snoozes or buries."""

from agentbus.queues.retry import *  # noqa: F403
