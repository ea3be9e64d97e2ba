"""Appends messages to the channel, the stream that all agents of a project share."""

from __future__ import annotations

from agentbus.core import names
from agentbus.store.steps import Script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.coordination.message import Message
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def speak(scope: Scope, body: str, topic: str | None = None) -> Op[Message]:
    """Append a message to the channel and return it."""
    entry_id = yield from append(scope, body, topic)
    from agentbus.coordination.message import Message
    from agentbus.core.stream import id_time

    return Message(entry_id, scope.agent, body, topic, id_time(entry_id))


def append(scope: Scope, body: str, topic: str | None = None, *fields: str) -> Op[str]:
    """Append a message with further fields and values, and return the entry's id."""
    said = names.body("message", body, scope.max_body)
    if topic is not None:
        names.name("topic", topic)
    keys, once = scope.keys, scope.once()
    step = Script(
        "speak",
        (keys.channel, keys.agents, keys.topics, once.key),
        (scope.agent, said, topic or "", scope.channel_trim, once.token, *fields),
        writes=True,
    )
    reply = yield step
    scope.free_slot(once, step)
    return str(reply[0].decode())
