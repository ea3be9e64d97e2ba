"""Codex CLI: its hooks' input; their output is that of Claude Code, and an unknown field voids it."""

from __future__ import annotations

from agentbus.agents.clients import _given
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
    tool, named = _given.text(given, "tool_name"), _given.part(given, "tool_input")
    if tool not in ("Bash", _PATCH):
        return []
    command = named.get("command", named.get("input", named.get("patch")))
    if isinstance(command, list):
        command = "\n".join(word for word in command if isinstance(word, str))
    if not isinstance(command, str) or (tool == "Bash" and _PATCH not in command):
        return []
    return _given.patched(command)


__all__ = ["EVENTS", "context", "deny", "edited", "go_on", "session", "stopped_before"]
