"""whoami: show the resolved settings and their sources."""

from __future__ import annotations

from agentbus.commands._declare import Call, Verb
from agentbus.coordination import presence
from agentbus.core import agent_name
from agentbus.core.errors import AgentBusError
from agentbus.core.names import word
from agentbus.core.settings import socket_path
from agentbus.store.scope import client_session
from agentbus.store.url import read

VERB = Verb(
    "whoami",
    text="A password in the URL is masked. The identity tells where the agent's name is from: given"
    " (--agent, AGENTBUS_AGENT, a config file), session (a variable of a coding agent's client), ancestor"
    " (the client's process), ci (a job's variables) or posix (this POSIX session). JSON: agent_id,"
    " identity, session (client, id, pid; or null), project, url, sources.",
    examples=("agentbus whoami", "AGENTBUS_AGENT=ci agentbus whoami --json"),
)


def run(call: Call) -> None:
    """Print the settings."""
    settings = call.settings
    embedded = settings.url is None
    url = f"unix://{socket_path()}" if settings.url is None else read(settings.url).masked()
    sources = {key: settings.sources.get(key, "default") for key in ("agent", "project", "url")}
    session, identity = client_session(), agent_name.identity(sources["agent"], settings.peers)
    if call.out.json:
        fields = {
            "agent_id": settings.agent,
            "identity": identity,
            "session": session and {"client": session.client, "id": session.id, "pid": session.pid},
            "project": settings.project,
            "url": url,
            "sources": sources,
        }
        call.out.record(fields, "")
        return
    own = "default: this POSIX session" if settings.peers else f"from {sources['agent']}"
    if identity == "ancestor" and session is not None:
        own = f"from the process {session.pid} of {session.client}"
    call.out.record({}, f"agent   {word(settings.agent)} ({own})")
    if session is not None:
        call.out.record({}, f"session {session.client} {session.id}{_guard(call)}")
    call.out.record({}, f"project {settings.project} (from {sources['project']})")
    origin = "default: the embedded server" if embedded else f"from {sources['url']}"
    call.out.record({}, f"url     {url} ({origin})")


def _guard(call: Call) -> str:
    """Return that no hook has run in this session, '' if one has, or if the server does not say."""
    try:
        unguarded = call.run(presence.is_unguarded(call.enter()))
    except AgentBusError:
        return ""
    return " (unguarded: no hook has run in it)" if unguarded else ""
