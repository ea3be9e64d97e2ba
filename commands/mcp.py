"""mcp: serve the tools of a coding agent over stdin and stdout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from agentbus.agents.mcp import SESSION, Server
from agentbus.commands import _tools
from agentbus.commands._declare import Call, Verb
from agentbus.commands._tool_call import Links
from agentbus.core import agent_name, client_session
from agentbus.core.json_text import from_json
from agentbus.core.settings import environment, resolve, state_directory, variable

if TYPE_CHECKING:
    from agentbus.agents.mcp import ToolResult

VERB = Verb(
    "mcp",
    text="A client of the Model Context Protocol starts it, one for each session. The tools are catch_up,"
    " tell, ask, reply, receipts, who, lease, note, flag and work; a call waits for at most 45 seconds."
    " Ends when stdin does.",
    examples=("agentbus mcp",),
    unconfigured=True,
    waits="",
)
# Variables that name a plugin's directory, in which Copilot starts the plugin's server instead of
# the session's directory.
_PLUGINS = ("COPILOT_PLUGIN_ROOT", "CLAUDE_PLUGIN_ROOT")


def run(call: Call) -> None:
    """Serve until the client closes stdin."""
    _enter_session()
    call.settings = resolve(call.args.flags)
    Server(_Tools(call).perform).serve()


def _enter_session() -> None:
    """Change from the plugin's directory to that of the session, which determines the project.

    That is the directory of the client, known only on Linux, or else of the shell that started it.
    """
    plugins = {os.path.realpath(path) for path in map(variable, _PLUGINS) if path}
    for there in (f"/proc/{os.getppid()}/cwd", variable("PWD")):
        if there and os.path.realpath(os.curdir) in plugins:
            with suppress(OSError):
                os.chdir(there)


class _Tools:
    """Runs the tools for the agents that a client names, usually one."""

    def __init__(self, call: Call) -> None:
        self._settings = call.settings
        self._links: dict[str, Links] = {}

    def perform(
        self,
        name: str,
        given: dict[str, Any],
        meta: Mapping[str, Any],
        wanted: Callable[[], bool],
    ) -> ToolResult:
        """Run a tool for the agent of a call."""
        return _tools.perform(self._of(meta), name, given, wanted)

    def _of(self, meta: Mapping[str, Any]) -> Links:
        """Return the connections of the agent that a call of the client is for."""
        agent, peers = self._settings.agent, self._settings.peers
        if agent_name.identity(self._settings.sources["agent"], peers) != "given":
            # If a process of several sessions started the server, each call names its own session.
            # Otherwise the client's hook may have named the session since.
            agent, peers = _named(meta) or (_default() if peers else (agent, peers))
        if agent not in self._links:
            settings = copy(self._settings)
            settings.agent, settings.peers = agent, peers
            self._links[agent] = Links(settings)
        return self._links[agent]


def _default() -> tuple[str, str]:
    agent, _, peers = agent_name.default(environment(), state_directory())
    return agent, peers


def _named(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the agent of the session that Codex or OpenCode's plugin names in each call."""
    client, session = "opencode", meta.get(SESSION)
    turn = meta.get("x-codex-turn-metadata")
    if isinstance(turn, str):
        # The value may be a JSON text.
        try:
            turn = from_json(turn)
        except ValueError:
            return None
    if isinstance(turn, dict):
        client, session = "codex", turn.get("session_id")
    if not isinstance(session, str) or not client_session.is_id(session):
        return None
    return client_session.name(client, session), ""
