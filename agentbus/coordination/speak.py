"""Appends messages to the channel, the stream that all agents of a project share."""

from __future__ import annotations

from agentbus.core import names
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
    from agentbus.core.stream import id_time

    return Message(entry_id, scope.agent, body, topic, id_time(entry_id))


def reach(scope: Scope, topic: str | None = None) -> Op[int]:
    """Return how many other agents are present, of at most 500, and do not mute the topic."""
    since = scope.server_now() - _PRESENT
    known = yield Command("ZREVRANGE", scope.keys.agents, 0, _MOST_PRESENT, "WITHSCORES")
    here = [
        (agent.decode("utf-8", "replace"), float(last))
        for agent, last in zip(known[::2], known[1::2], strict=False)
    ]
    here = [(agent, last) for agent, last in here if agent != scope.agent and last >= since]
    if not here:
        return 0
    fields = "state", "seen", "host", "pid", "topics"
    replies = yield Batch([("HMGET", scope.keys.who(agent), *fields) for agent, _ in here])
    return sum(
        _hears(scope, last, fields if isinstance(fields, list) else [None] * 5, topic)
        for (_, last), fields in zip(here, replies, strict=True)
    )


def _hears(scope: Scope, last: float, fields: list[bytes | None], topic: str | None) -> bool:
    state, seen, host, pid, topics = ((word or b"").decode("utf-8", "replace") for word in fields)
    if not names.rings(topics or scope.topics, topic or ""):
        return False
    used_since = last > (int(seen) / 1000 if seen.isdecimal() else 0.0) + 1
    if state == "gone" and used_since:
        state = ""
    if state not in names.STATES:
        return scope.server_now() - last <= _USED
    if state != "gone" and host and pid.isdecimal() and int(pid):
        import os

        from agentbus.core.running import runs

        return host != os.uname().nodename or runs(int(pid))
    return state != "gone"


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
