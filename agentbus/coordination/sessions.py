"""Maps the sessions of coding agents' clients to agents, and agents to sessions, within a project."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentbus.core import client_session, names
from agentbus.core.names import escape
from agentbus.core.stream import text
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Beyond so many fields, two for each session, those of agents without a presence are removed.
MOST = 2_000
_AT_ONCE = 500
# A session of another host that was not seen for so many ms may have ended with its host.
_SILENT = 3_600_000


def register(scope: Scope, client: str, session: str, agent: str | None = None) -> Op[str | None]:
    """Record which agent a session is, by default the one of its name; repeating it changes nothing.

    Returns the other session that has this name and has not ended, as `<client>:<id>`: it keeps the name,
    and the two share an inbox. None if there is no other one. Raises `ValueError` for an invalid client or
    id. To be executed before the presence of this session is recorded.
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


def lives(host: bytes, process: bytes, silent: bytes) -> bool:
    """Tell whether the other session lives, by what the script `bind_session` replied of its presence."""
    if text(host) != os.uname().nodename:
        return int(silent) < _SILENT
    pid = text(process)
    return pid.isdigit() and client_session.start_of(int(pid)) is not None


def agent_of(scope: Scope, client: str, session: str) -> Op[str | None]:
    """Return which agent a session is, None if it was never recorded."""
    asked = one_step(Command("HGET", scope.keys.client_sessions, f"{client}:{session}"))
    # A key of another type, by another program, is replaced when a session is recorded.
    agent = yield from or_empty(asked, None)
    return None if agent is None else text(agent)


def session_of(scope: Scope, agent: str) -> Op[tuple[str, str] | None]:
    """Return the client and the id of an agent's session, None if it has none."""
    asked = one_step(Command("HGET", scope.keys.client_sessions, escape(agent)))
    stored = yield from or_empty(asked, None)
    client, colon, session = text(stored or b"").partition(":")
    return (client, session) if colon else None


def _prune(scope: Scope) -> Op[None]:
    """Remove the sessions of agents that were not seen for a day; one that goes on is recorded again."""
    keys = scope.keys
    flat = yield Command("HGETALL", keys.client_sessions)
    pairs = [(text(flat[at]), text(flat[at + 1])) for at in range(0, len(flat), 2)]
    # A session's field has a colon; in that of an agent it is encoded.
    agents = {field: agent if ":" in field else names.unescape(field) for field, agent in pairs}
    fields = list(agents)
    for at in range(0, len(fields), _AT_ONCE):
        page = fields[at : at + _AT_ONCE]
        there = yield Batch([("EXISTS", keys.who(agents[field])) for field in page])
        gone = [field for field, exists in zip(page, there, strict=True) if exists == 0]
        if gone:
            yield Command("HDEL", keys.client_sessions, *gone)
