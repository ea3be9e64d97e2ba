"""A project as a whole: its agents and topics, and deleting its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.core import validate
from agentbus.core.keys import cursor_field
from agentbus.core.stream import score, text
from agentbus.store.failures import or_empty
from agentbus.store.scan import key_bytes, scan
from agentbus.store.steps import Command, Script, floor, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Commands for operators do not scan a server with more keys than this.
MANY_KEYS = 100_000
_AT_ONCE = 500
# Maximum number of keys per UNLINK: other clients wait while the server frees small keys.
_UNLINKED = 100


@dataclass(frozen=True, slots=True)
class AgentActivity:
    """An agent that has used the bus, with its last activity (unix time) and its cursor `heard`.

    `unheard` counts the messages after the cursor, None if that is unknown.
    """

    agent_id: str
    last_seen: float
    heard: str | None
    unheard: int | None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with the unix time of its last message."""

    topic: str
    last_spoken: float


def agents(scope: Scope, limit: int | None = None) -> Op[list[AgentActivity]]:
    """Return the agents, most recently active first, with their numbers of unheard messages."""
    if limit is not None:
        validate.number_of("limit", limit, "agents")
    keys = scope.keys
    yield floor()
    if limit == 0:
        return []
    seen = yield from _newest(keys.agents, limit)
    named = [(text(seen[i]), score(seen[i + 1])) for i in range(0, len(seen), 2)]
    return (yield from _activity(scope, named)) if named else []


def _activity(scope: Scope, named: list[tuple[str, float]]) -> Op[list[AgentActivity]]:
    keys = scope.keys
    activities = []
    for at in range(0, len(named), _AT_ONCE):
        page = named[at : at + _AT_ONCE]
        reply = yield Script(
            "read_cursors",
            (keys.channel, keys.heard, *(keys.cursor(agent) for agent, _ in page)),
            [cursor_field(agent) for agent, _ in page],
        )
        for (agent, last), cursor, unheard in zip(page, reply[::2], reply[1::2], strict=True):
            number = unheard if unheard >= 0 else None
            activities.append(AgentActivity(agent, last, text(cursor) or None, number))
    return activities


def agent(scope: Scope, name: str) -> Op[AgentActivity | None]:
    """Return the activity of one agent, None if it never used the bus."""
    last = yield from or_empty(one_step(Command("ZSCORE", scope.keys.agents, name)), None)
    if last is None:
        return None
    (activity,) = yield from _activity(scope, [(name, score(last))])
    return activity


def known(scope: Scope) -> Op[int]:
    """Return the number of known agents."""
    number = yield from or_empty(one_step(Command("ZCARD", scope.keys.agents)), 0)
    return int(number)


def topics(scope: Scope) -> Op[list[Topic]]:
    """Return the topics, most recently used first."""
    yield floor()
    seen = yield from _newest(scope.keys.topics)
    return [Topic(text(seen[i]), score(seen[i + 1])) for i in range(0, len(seen), 2)]


def _newest(key: str, limit: int | None = None) -> Op[list[bytes]]:
    """Return the members of a sorted set with their scores, highest first."""
    last = -1 if limit is None else limit - 1
    return or_empty(one_step(Command("ZREVRANGE", key, 0, last, "WITHSCORES")), [])


def clear(scope: Scope, *, dry_run: bool = False) -> Op[dict[str, int]]:
    """Delete the project's keys, and return the number of each kind."""
    # Prevent presence records between the scan and the deletion.
    scope.attended = scope.monotonic()
    counts: dict[str, int] = {}
    keys = yield from scan(scope, None)
    own_keys = []
    for key in keys:
        kind = scope.keys.kind(key)
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
            own_keys.append(key)
    if not dry_run:
        for at in range(0, len(own_keys), _UNLINKED):
            yield Command("UNLINK", *map(key_bytes, own_keys[at : at + _UNLINKED]))
    return dict(sorted(counts.items()))
