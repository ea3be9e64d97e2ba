"""The message: what is said on the channel."""

from __future__ import annotations

from agentbus.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Message(Record):
    """One entry of the channel.

    `timestamp` is unix seconds by the server's clock. Where the bus itself spoke, `event` names
    what happened and `details` holds its fields (`flag`, `token`, `note`, `missed`, …).
    """

    id: str
    agent_id: str
    text: str
    topic: str | None
    timestamp: float
    event: str | None = None
    details: Mapping[str, str] | None = None
