"""The folder that clients install: a plugin for three clients, an extension, a JavaScript plugin.

Every command in it uses the absolute path of `agentbus`, since a client's hooks may not have the
PATH of the user's shell.
"""

from __future__ import annotations

import json
import os
import shlex
from importlib import resources
from typing import Any

from agentbus.agents.clients import CLIENTS
from agentbus.core.settings import VARIABLES
from agentbus.core.version import __version__

NAME = "agentbus"
_SAYS = "Messages, leases of files and tasks between the coding agents of a repository."
_PORTABLE = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
_HOME = "https://github.com/agentbus-toolkit/agentbus"
# Seconds that a client waits for a hook: the first hook of a session may start the embedded server.
# Codex waits at most three seconds for the last hook.
_WITHIN, _ENDS_WITHIN = 10, 3
# Seconds that a client lets a hook wait for a message while the agent is idle.
_WAITS_FOR = 3600


def files(program: str) -> dict[str, str]:
    """Return the text of each file by its path; `program` is the absolute path of `agentbus`."""
    about = {
        "name": NAME,
        "version": version(),
        "description": _SAYS,
        "author": {"name": "AgentBus"},
    }
    servers = {"mcpServers": {NAME: server(program)}}
    market = {
        "name": NAME,
        "owner": {"name": "AgentBus", "url": _HOME},
        "metadata": {"description": _SAYS},
        "plugins": [{"name": NAME, "source": f"./{NAME}", "description": _SAYS}],
    }
    contents: dict[str, Any] = {
        ".claude-plugin/marketplace.json": market,
        f"{NAME}/.mcp.json": servers,
        f"{NAME}/codex.mcp.json": {
            "mcpServers": {NAME: server(program) | {"env_vars": _variables()}}
        },
        f"{NAME}/skills/{NAME}/SKILL.md": text("SKILL.md", program),
        # The form of Agent Plugins 1.0 has no hooks, and starts a server in its own directory, where it
        # would not find the project: the skill is all that it can bring.
        "portable/plugin.json": about | {"$schema": _PORTABLE},
        f"portable/skills/{NAME}/SKILL.md": text("SKILL.md", program),
        "gemini/gemini-extension.json": {
            "name": NAME,
            "version": version(),
            "description": _SAYS,
            "contextFileName": "GEMINI.md",
            **servers,
        },
        "gemini/hooks/hooks.json": hooks("gemini", program),
        "gemini/GEMINI.md": text("GEMINI.md", program),
        "opencode/agentbus.js": text("opencode.js", program),
    }
    for client in CLIENTS.values():
        if client.plugin is not None:
            # Each reads its own manifest, and then the hooks that it names.
            contents[f"{NAME}/{client.plugin.manifest}"] = about | {**client.plugin.manifest_fields}
            contents[f"{NAME}/{client.plugin.hooks}"] = hooks(client.name, program)
    return {
        path: content if isinstance(content, str) else as_json(content)
        for path, content in contents.items()
    }


def write(program: str, folder: str) -> bool:
    """Write the folder, remove other files from it, and return whether anything changed."""
    wanted = files(program)
    changed = False
    for path, content in wanted.items():
        changed = _write(os.path.join(folder, path), content) or changed
    for path in present(folder):
        if path not in wanted:
            os.unlink(os.path.join(folder, path))
            changed = True
    return changed


def present(folder: str) -> list[str]:
    """Return the paths of the files in a folder, relative to it, in order."""
    return sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    )


def hooks(name: str, program: str) -> dict[str, Any]:
    """Return the hooks of a client, in the client's format."""
    client = CLIENTS[name]
    by_event: dict[str, Any] = {}
    for event, kind in client.events.items():
        within = (_ENDS_WITHIN if kind == "end" else _WITHIN) * client.second
        hook: dict[str, Any] = {"command": command(program, name, event), "timeout": within}
        if client.nested:
            commands = [{"type": "command", **hook}]
            if kind == "stop" and client.wakes:
                # The hook that waits for a message runs beside the hook of the turn's end.
                waits = {"type": "command", "command": command(program, name, "Wake")}
                commands.append(waits | {"asyncRewake": True, "timeout": _WAITS_FOR})
            hook = {"hooks": commands}
            if kind == "edit":
                hook = {"matcher": "|".join(client.edits), **hook}
        by_event[event] = [hook]
    return {"hooks": by_event} if client.nested else {"version": 1, "hooks": by_event}


def server(program: str) -> dict[str, Any]:
    """Return the entry of the MCP server in a client's settings."""
    return {"command": program, "args": ["mcp"]}


def command(program: str, client: str, event: str) -> str:
    """Return the shell command of a hook."""
    # The first page of a session names the MCP tools, whose server is installed with the hooks.
    tools = " --tools" if CLIENTS[client].kind(event) == "start" else ""
    return f"{shlex.quote(program)} hook {client} {event}{tools}"


def text(name: str, program: str) -> str:
    """Return a text of the package data, with the path of `agentbus` in it."""
    template = resources.files("agentbus.agents").joinpath("plugin_data", name).read_text("utf-8")
    return template.replace("@AGENTBUS_JSON@", json.dumps(program)).replace(
        "@AGENTBUS@", f"`{shlex.quote(program)}`"
    )


def _variables() -> list[str]:
    """Return the variables to pass on to the server, of which Codex passes only a few itself."""
    state = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
    return [*(name for names in VARIABLES.values() for name in names), *state]


def version() -> str:
    """Return the plugin's version as clients require it: 0.2.0-dev0 for 0.2.0.dev0."""
    number = ".".join(__version__.split(".")[:3])
    rest = __version__[len(number) :].strip(".")
    return f"{number}-{rest}" if rest else number


def as_json(value: object) -> str:
    """Return a value as the text of a JSON file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write(path: str, content: str) -> bool:
    """Write a file atomically if its content differs; return whether it was written."""
    data = content.encode("utf-8", "surrogateescape")
    try:
        with open(path, "rb") as file:
            if file.read() == data:
                return False
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.{os.getpid()}"
    with open(beside, "wb") as file:
        file.write(data)
    os.replace(beside, path)
    return True
