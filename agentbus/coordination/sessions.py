"""Maps sessions of coding agents' clients to agents, and agents to sessions, within a project."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentbus.coordination.presence import has_ended
from agentbus.core import client_session, names
from agentbus.core.names import escape
from agentbus.core.stream import text
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of fields (two per session) before those of agents without a presence are removed.
MOST = 2_000
_AT_ONCE = 500
# Milliseconds after which an unseen session on another host counts as ended.
_SILENT = 3_600_000


def register(scope: Scope, client: str, session: str, agent: str | None = None) -> Op[str | None]:
    """Record the agent of a session, by default the one named after it; idempotent.

    Returns another session with this name that has not ended, as `<client>:<id>`: it keeps the name, and
    the two share an inbox; None if there is no other. Raises `ValueError` for an invalid client or id. Call
    this before the presence of this session is recorded.
    """
    known = client_session.name(client, session)
    agent = known if agent is None else names.name("agent", agent)
    keys = scope.keys
    step = Script(
        "bind_session",
        (keys.client_sessions, keys.who(agent)),
        (f"{client}:{session}", escape(agent), agent, session),
        writes=True,
    )
    other, fields, *_ = yield step
    if int(fields) > MOST:
        yield from _prune(scope)
    return text(other) or None


def lives(pid: bytes, process: bytes, host: bytes, silent: bytes) -> bool:
    """Return whether another session is alive, from its presence in the reply of `bind_session`."""
    if text(host) != os.uname().nodename:
        return int(silent) < _SILENT
    return pid != b"" and not has_ended(text(host), text(pid), text(process))


def agent_of(scope: Scope, client: str, session: str) -> Op[str | None]:
    """Return the agent of a session; None if it was never recorded."""
    asked = one_step(Command("HGET", scope.keys.client_sessions, f"{client}:{session}"))
    # A key of another type, by another program, is replaced when a session is recorded.
    agent = yield from or_empty(asked, None)
    return None if agent is None else text(agent)


def session_of(scope: Scope, agent: str) -> Op[tuple[str, str] | None]:
    """Return the client and the id of an agent's session; None if it has none."""
    asked = one_step(Command("HGET", scope.keys.client_sessions, escape(agent)))
    stored = yield from or_empty(asked, None)
    client, colon, session = text(stored or b"").partition(":")
    return (client, session) if colon else None


def _prune(scope: Scope) -> Op[None]:
    """Remove the sessions of agents not seen for a day; a session that continues is recorded again."""
    keys = scope.keys
    flat = yield Command("HGETALL", keys.client_sessions)
    pairs = [(text(flat[at]), text(flat[at + 1])) for at in range(0, len(flat), 2)]
    # The field of a session contains a colon; the field of an agent is escaped.
    agents = {field: agent if ":" in field else names.unescape(field) for field, agent in pairs}
    fields = list(agents)
    for at in range(0, len(fields), _AT_ONCE):
        page = fields[at : at + _AT_ONCE]
        there = yield Batch([("EXISTS", keys.who(agents[field])) for field in page])
        gone = [field for field, exists in zip(page, there, strict=True) if exists == 0]
        if gone:
            yield Command("HDEL", keys.client_sessions, *gone)
