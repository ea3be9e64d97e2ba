"""Retries of failed tasks: the backoff, and the exceptions by which handlers choose another outcome."""

from agentbus.queues.retry import *  # noqa: F403
