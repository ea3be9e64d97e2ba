"""mcp: serve the tools of a coding agent over stdin and stdout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from agentbus.agents.mcp import SESSION, Server, ToolResult
from agentbus.commands import _tool_call, _tools
from agentbus.commands._declare import Call, Verb
from agentbus.commands._errors import unexpected
from agentbus.commands._tool_call import Links
from agentbus.core import agent_name, client_session
from agentbus.core.errors import AgentBusError
from agentbus.core.json_text import from_json
from agentbus.core.settings import environment, resolve, state_directory, variable

if TYPE_CHECKING:
    from agentbus.commands._tool_call import ToolCall

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


# Tools whose result is a list, even of one item.
_LISTS = ("catch_up", "lease", "note", "receipts", "who")


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
        """Run a tool, unless its result is no longer `wanted`; errors become its result."""
        tool = None
        try:
            tool = _tool_call.ToolCall(self._of(meta), given, wanted)
            _tools.PERFORM[name](tool)
        except AgentBusError as error:
            error.name_operation(name)
            return _failed(error, tool)
        except Exception as error:  # noqa: BLE001 (the server goes on)
            return _failed(unexpected(error, name), tool)
        printed = tool.captured
        data: Mapping[str, object] = {"items": printed.records}
        if len(printed.records) == 1 and name not in _LISTS:
            (data,) = printed.records
        return ToolResult("\n".join(printed.lines), data, False, tool.finish)

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


def _failed(error: AgentBusError, tool: ToolCall | None) -> ToolResult:
    """Return the error as a result, in the words of the command line."""
    text = f"agentbus: {error.message}"
    if error.shell_hint:
        text += f"\nhint: {error.shell_hint}"
    shown = [*tool.captured.lines, text] if tool is not None else [text]
    data = {"error": error.message, "code": error.exit_code, "hint": error.shell_hint}
    return ToolResult("\n".join(shown), data, True, None if tool is None else tool.finish)
