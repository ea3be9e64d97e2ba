"""Webhooks: results posted to https URLs, signed, retried apart from the tasks they tell of."""

from agentbus.workers.webhooks import *  # noqa: F403
