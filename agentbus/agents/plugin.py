"""The folder that clients install: a plugin for three of them, an extension, and a plugin in JavaScript.

Every command in it has the absolute path of one `agentbus`, since a client's hooks need not have the PATH
of the user's shell.
"""

from __future__ import annotations

import json
import os
import shlex
from importlib import resources
from typing import Any

from agentbus.core.settings import VARIABLES
from agentbus.core.version import __version__

NAME = "agentbus"
_SAYS = "Messages, leases of files and tasks between the coding agents of a repository."
_HOME = "https://github.com/agentbus-toolkit/agentbus"
# Seconds that a client waits for a hook: the first one of a session may start the embedded server. Codex
# waits for the last one for at most three.
_WITHIN, _ENDS_WITHIN = 10, 3
# Seconds that it lets one run that waits for a message while the agent is idle.
_WAITS_FOR = 3600

# The events of each client of which it is to call a hook, with the tools for which it is.
_CLAUDE = {
    "SessionStart": "",
    "UserPromptSubmit": "",
    "PreToolUse": "Edit|Write|MultiEdit|NotebookEdit",
    "PostToolUse": "",
    "Stop": "",
    "SessionEnd": "",
}
HOOKS = {
    "claude": _CLAUDE,
    "codex": _CLAUDE | {"PreToolUse": "Bash|apply_patch"},
    "copilot": _CLAUDE | {"PreToolUse": "edit|create|Edit|Write"},
    "gemini": {
        "SessionStart": "",
        "BeforeAgent": "",
        "BeforeTool": "replace|write_file",
        "AfterTool": "",
        "AfterAgent": "",
        "SessionEnd": "",
    },
    "cursor": dict.fromkeys(
        ("sessionStart", "beforeSubmitPrompt", "preToolUse", "postToolUse", "stop", "sessionEnd"),
        "",
    ),
}


def files(program: str) -> dict[str, str]:
    """Return the text of each file by its path; `program` is the absolute path of `agentbus`."""
    about = {
        "name": NAME,
        "version": version(),
        "description": _SAYS,
        "author": {"name": "AgentBus"},
    }
    server = {"mcpServers": {NAME: {"command": program, "args": ["mcp"]}}}
    market = {
        "name": NAME,
        "owner": {"name": "AgentBus", "url": _HOME},
        "metadata": {"description": _SAYS},
        "plugins": [{"name": NAME, "source": f"./{NAME}", "description": _SAYS}],
    }
    skill = text("SKILL.md", program)
    found: dict[str, Any] = {
        ".claude-plugin/marketplace.json": market,
        f"{NAME}/.claude-plugin/plugin.json": about,
        # Each of the two reads its manifest first, and then the hooks that it names.
        f"{NAME}/.codex-plugin/plugin.json": about
        | {"hooks": "./hooks/codex.json", "mcpServers": "./codex.mcp.json"},
        f"{NAME}/.plugin/plugin.json": about | {"hooks": "hooks/copilot.json"},
        f"{NAME}/hooks/hooks.json": hooks("claude", program),
        f"{NAME}/hooks/codex.json": hooks("codex", program),
        f"{NAME}/hooks/copilot.json": hooks("copilot", program),
        f"{NAME}/.mcp.json": server,
        f"{NAME}/codex.mcp.json": {
            "mcpServers": {NAME: {"command": program, "args": ["mcp"], "env_vars": _variables()}}
        },
        f"{NAME}/skills/{NAME}/SKILL.md": skill,
        "gemini/gemini-extension.json": {
            "name": NAME,
            "version": version(),
            "description": _SAYS,
            "contextFileName": "GEMINI.md",
            **server,
        },
        "gemini/hooks/hooks.json": hooks("gemini", program),
        "gemini/GEMINI.md": text("GEMINI.md", program),
        "opencode/agentbus.js": text("opencode.js", program),
    }
    return {path: one if isinstance(one, str) else as_json(one) for path, one in found.items()}


def write(program: str, folder: str) -> bool:
    """Write the folder, remove what else is in it, and return whether anything was different."""
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


def hooks(client: str, program: str) -> dict[str, Any]:
    """Return the hooks of a client, in its form."""
    if client == "cursor":
        return {
            "version": 1,
            "hooks": {one: [_hook(client, one, program)] for one in HOOKS[client]},
        }
    found: dict[str, Any] = {}
    for event, matcher in HOOKS[client].items():
        group: dict[str, Any] = {"matcher": matcher} if matcher else {}
        found[event] = [group | {"hooks": [_hook(client, event, program)]}]
    if client == "claude":
        # Beside the hook of the turn's end.
        waits = {"type": "command", "command": command(program, client, "Wake")}
        found["Stop"][0]["hooks"].append(waits | {"asyncRewake": True, "timeout": _WAITS_FOR})
    return {"hooks": found}


def command(program: str, client: str, event: str) -> str:
    """Return the shell command of a hook."""
    # The page that a session reads first names the tools: their server is installed with the hooks.
    tools = " --tools" if event.lower() in ("sessionstart", "session.created") else ""
    return f"{shlex.quote(program)} hook {client} {event}{tools}"


def _hook(client: str, event: str, program: str) -> dict[str, Any]:
    within = _ENDS_WITHIN if event.lower() == "sessionend" else _WITHIN
    # Gemini CLI counts in milliseconds.
    within *= 1000 if client == "gemini" else 1
    hook = {"command": command(program, client, event), "timeout": within}
    return hook if client == "cursor" else {"type": "command", **hook}


def text(name: str, program: str) -> str:
    """Return a text of the package data, with the path of `agentbus` in it."""
    found = resources.files("agentbus.agents").joinpath("plugin_data", name).read_text("utf-8")
    return found.replace("@AGENTBUS_JSON@", json.dumps(program)).replace(
        "@AGENTBUS@", f"`{shlex.quote(program)}`"
    )


def _variables() -> list[str]:
    """Return the variables that Codex does not pass on to the server by itself: it passes few."""
    state = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
    return [*(one for found in VARIABLES.values() for one in found), *state]


def version() -> str:
    """Return the version of the plugin, in the form that clients demand: 0.2.0-dev0 for 0.2.0.dev0."""
    number = ".".join(__version__.split(".")[:3])
    rest = __version__[len(number) :].strip(".")
    return f"{number}-{rest}" if rest else number


def as_json(value: object) -> str:
    """Return a value as the text of a JSON file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write(path: str, content: str) -> bool:
    """Write a file in one step, unless it is what it should be; return whether it was written."""
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
