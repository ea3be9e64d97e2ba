"""Webhooks: signed results posted to https URLs, with retries of their own."""

from agentbus.workers.webhooks import *  # noqa: F403
