"""Appends messages to the channel, the stream that all agents of a project share."""

from __future__ import annotations

from agentbus.core import client_session, names
from agentbus.core.stream import id_time
from agentbus.store.steps import Batch, Command, Script

# Seconds for which an agent is present after it was seen, and one without a record after it used the
# channel; the most agents to examine.
_PRESENT, _USED, _MOST_PRESENT = 86_400.0, 3_600.0, 500

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.coordination.message import Message
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def speak(scope: Scope, body: str, topic: str | None = None) -> Op[Message]:
    """Append a message to the channel and return it."""
    entry_id = yield from append(scope, body, topic)
    from agentbus.coordination.message import Message

    return Message(entry_id, scope.agent, body, topic, id_time(entry_id))


def reach(scope: Scope, entry_id: str, topic: str | None = None) -> Op[int]:
    """Return how many other agents a message reaches: present ones, of at most 500, that do not mute it."""
    now = id_time(entry_id)
    since = now - _PRESENT
    known = yield Command("ZREVRANGE", scope.keys.agents, 0, _MOST_PRESENT, "WITHSCORES")
    here = [
        (agent.decode("utf-8", "replace"), float(last))
        for agent, last in zip(known[::2], known[1::2], strict=False)
    ]
    here = [(agent, last) for agent, last in here if agent != scope.agent and last >= since]
    if not here:
        return 0
    fields = "state", "seen", "process", "topics"
    replies = yield Batch([("HMGET", scope.keys.who(agent), *fields) for agent, _ in here])
    return sum(
        _hears(scope, now - last, last, named if isinstance(named, list) else [None] * 4, topic)
        for (_, last), named in zip(here, replies, strict=True)
    )


def _hears(
    scope: Scope, unused: float, last: float, fields: list[bytes | None], topic: str | None
) -> bool:
    state, seen, process, topics = ((word or b"").decode("utf-8", "replace") for word in fields)
    if not names.rings(topics or scope.topics, topic or ""):
        return False
    used_since = last > (int(seen) / 1000 if seen.isdecimal() else 0.0) + 1
    if state not in names.STATES or (state == "gone" and used_since):
        return unused <= _USED
    return state != "gone" and not client_session.has_ended(process)


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
