"""Webhooks: signed results posted to https URLs, with their own retries."""

from agentbus.workers.webhooks import *  # noqa: F403
