"""whoami: show the resolved settings and their sources."""

from __future__ import annotations

from agentbus.commands._declare import Call, Verb
from agentbus.core import agent_name
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
    found = call.settings
    embedded = found.url is None
    url = f"unix://{socket_path()}" if found.url is None else read(found.url).masked()
    sources = {key: found.sources.get(key, "default") for key in ("agent", "project", "url")}
    session, identity = client_session(), agent_name.identity(sources["agent"], found.peers)
    if call.out.json:
        fields = {
            "agent_id": found.agent,
            "identity": identity,
            "session": session and {"client": session.client, "id": session.id, "pid": session.pid},
            "project": found.project,
            "url": url,
            "sources": sources,
        }
        call.out.record(fields, "")
        return
    own = "default: this POSIX session" if found.peers else f"from {sources['agent']}"
    if identity == "ancestor" and session is not None:
        own = f"from the process {session.pid} of {session.client}"
    call.out.record({}, f"agent   {word(found.agent)} ({own})")
    if session is not None:
        call.out.record({}, f"session {session.client} {session.id}")
    call.out.record({}, f"project {found.project} (from {sources['project']})")
    origin = "default: the embedded server" if embedded else f"from {sources['url']}"
    call.out.record({}, f"url     {url} ({origin})")
