"""Codex CLI: its hooks' input; their output is that of Claude Code, and an unknown field voids it."""

from __future__ import annotations

from agentbus.agents import clients
from agentbus.agents.clients.claude import (
    COMMON as EVENTS,
    context,
    deny,
    go_on,
    session,
    stopped_before,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PATCH = "apply_patch"


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths of a patch, which a tool takes, or a command of the shell."""
    tool, named = clients.text(given, "tool_name"), clients.part(given, "tool_input")
    if tool not in ("Bash", _PATCH):
        return []
    command = named.get("command", named.get("input", named.get("patch")))
    if isinstance(command, list):
        command = "\n".join(word for word in command if isinstance(word, str))
    if not isinstance(command, str) or (tool == "Bash" and _PATCH not in command):
        return []
    found = clients.patched(command)
    there = _directory(command) if tool == "Bash" else ""
    return [f"{there}/{path}" if there and path[:1] != "/" else path for path in found]


def _directory(command: str) -> str:
    """Return the directory of a patch, to which the shell changes first: `cd src && apply_patch …`."""
    before = command.partition(_PATCH)[0]
    if "cd" not in before:
        return ""
    import shlex

    try:
        words = shlex.split(before)
    except ValueError:
        return ""
    return words[1] if len(words) == 3 and words[0] == "cd" and words[2] == "&&" else ""


__all__ = ["EVENTS", "context", "deny", "edited", "go_on", "session", "stopped_before"]
