"""Copilot CLI: the input and output of hooks, of plugins in Claude Code's layout and of its hook files."""

from __future__ import annotations

from agentbus.agents.clients import _given, claude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    **claude.EVENTS,
    "sessionStart": "start",
    "userPromptSubmitted": "turn",
    "postToolUse": "tool",
    "preToolUse": "edit",
    "agentStop": "stop",
    "sessionEnd": "end",
}
_EDITS = dict.fromkeys(("edit", "create", "Edit", "Write"), ("path", "file_path"))


def session(given: Mapping[str, Any]) -> str | None:
    """Return the id of the session."""
    return _given.text(given, "session_id", "sessionId")


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths that a tool is about to edit."""
    if "toolName" not in given:
        # A patch is an edit, too, whose input is the patch.
        patch = _given.text(_given.part(given, "tool_input"), "input")
        if patch is not None and given.get("tool_name") in _EDITS:
            return _given.patched(patch)
        return _given.edited(given, _EDITS, tool="tool_name", input="tool_input")
    arguments = given.get("toolArgs")
    if isinstance(arguments, str):
        from agentbus.core.json_text import from_json

        try:
            arguments = from_json(arguments)
        except ValueError:
            return []
    named = {"toolName": given["toolName"], "toolArgs": arguments}
    return _given.edited(named, _EDITS, tool="toolName", input="toolArgs")


def stopped_before(given: Mapping[str, Any]) -> bool:
    """Tell whether this turn goes on because its end was refused."""
    return given.get("stop_hook_active", given.get("stopHookActive", False)) is not False


def context(event: str, text: str) -> object:
    """Return the answer that adds a text to what the model reads: at the top, in both layouts."""
    return {"additionalContext": text}


def deny(event: str, text: str) -> object:
    """Return the answer that refuses a tool; the event's name tells the layout."""
    if event[:1].isupper():
        return claude.deny(event, text)
    return {"permissionDecision": "deny", "permissionDecisionReason": text}


go_on = claude.go_on
