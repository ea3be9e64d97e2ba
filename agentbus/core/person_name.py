"""Refuses the name of a person, `human:<name>`, to coding agents and to other Redis users."""

from __future__ import annotations

from collections.abc import Mapping

from agentbus.core import client_session
from agentbus.core.errors import InvalidName
from agentbus.core.names import SESSION_VARIABLES, unquoted

# Variables that clients set in the shells of their agents, beside those of a session's id.
_VARIABLES = (
    *("CLAUDECODE", "AI_AGENT", "GEMINI_CLI", "OPENCODE", "CURSOR_AGENT"),
    *("CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED"),
)
_PROGRAMS = frozenset(("claude", "codex", "copilot", "gemini", "opencode", "cursor-agent"))


def check(agent: str, environment: Mapping[str, str], state: str, url: str | None) -> None:
    """Raise `InvalidName` if this process may not speak for the person; `url` is the server's."""
    check_session(agent, environment, state)
    place = (url or "").partition("://")[2].partition("/")[0]
    user = unquoted(place.rpartition("@")[0].partition(":")[0])
    if user not in ("", "default") and user != agent.partition(":")[2]:
        raise InvalidName(
            f"{agent!a} is the name of a person, and the Redis user is {user!a}",
            hint=f"connect as the Redis user {agent.partition(':')[2]!a}, or choose another name",
        )


def check_session(agent: str, environment: Mapping[str, str], state: str) -> None:
    """Raise `InvalidName` within a session of a coding agent's client."""
    client = _client(environment, state)
    if client:
        raise InvalidName(
            f"{agent!a} is the name of a person, and this is a session of a coding agent ({client})",
            hint="leave the name out, or speak for yourself from a terminal of your own",
        )


def _client(environment: Mapping[str, str], state: str) -> str:
    """Return by what this process is known to be in a session of a client, '' if it is in none."""
    for variable in (*SESSION_VARIABLES, *_VARIABLES):
        if environment.get(variable):
            return variable
    above = client_session.of_ancestor(client_session.folder_in(state))
    if above is not None:
        return f"process {above.pid}"
    for pid, _ in client_session.ancestors():
        if client_session.command(pid) in _PROGRAMS:
            return f"process {pid}"
    return ""
