"""whoami: show the resolved settings and their sources."""

from __future__ import annotations

from agentbus.commands._declare import Call, Verb

VERB = Verb(
    "whoami",
    "Show the agent, project and server, and the source of each.",
    text="A password in the URL is masked. JSON: agent, project, url, sources.",
    examples=("agentbus whoami", "AGENTBUS_AGENT=ci agentbus whoami --json"),
    local=True,
)


def run(call: Call) -> None:
    """Print the settings."""
    from agentbus.core.settings import socket_path
    from agentbus.store.url import read

    found = call.settings
    embedded = found.url is None
    url = f"unix://{socket_path()}" if found.url is None else read(found.url).masked()
    sources = {key: found.sources[key] for key in ("agent", "project", "url")}
    if call.out.json:
        call.out.record(
            {"agent": found.agent, "project": found.project, "url": url, "sources": sources}, ""
        )
        return
    call.out.record({}, f"agent   {found.agent} (from {sources['agent']})")
    call.out.record({}, f"project {found.project} (from {sources['project']})")
    origin = "default: the embedded server" if embedded else f"from {sources['url']}"
    call.out.record({}, f"url     {url} ({origin})")
