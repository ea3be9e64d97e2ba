"""A message on the channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the channel.

    `timestamp` is unix seconds of the server's clock. In a notice of the bus itself, `event` is the kind
    and `details` are the fields (`flag`, `token`, `note`, `missed`, …).
    """

    id: str
    agent_id: str
    text: str
    topic: str | None
    timestamp: float
    event: str | None = None
    details: Mapping[str, str] | None = None
