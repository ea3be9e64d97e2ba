"""Copilot CLI: the input and output of hooks, of plugins in Claude Code's layout and of its hook files."""

from __future__ import annotations

from agentbus.agents import clients
from agentbus.agents.clients import claude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    **claude.COMMON,
    "sessionStart": "start",
    "userPromptSubmitted": "turn",
    "postToolUse": "tool",
    "preToolUse": "edit",
    "agentStop": "stop",
    "sessionEnd": "end",
}
_PATCH = "*** Begin Patch"
_EDITS = dict.fromkeys(("edit", "create", "Edit", "Write"), ("path", "file_path"))


def session(given: Mapping[str, Any]) -> str | None:
    """Return the id of the session."""
    return clients.text(given, "session_id", "sessionId")


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths that a tool is about to edit: one, or those of a patch, which some models send."""
    name, input = ("toolName", "toolArgs") if "toolName" in given else ("tool_name", "tool_input")
    tool, arguments = given.get(name), given.get(input)
    # The patch is all of the input, or a field of it.
    patch = arguments if isinstance(arguments, str) else clients.part(given, input).get("input")
    if isinstance(patch, str) and _PATCH in patch and tool in ("apply_patch", *_EDITS):
        return clients.patched(patch)
    if isinstance(arguments, str):
        from agentbus.core.json_text import from_json

        try:
            arguments = from_json(arguments)
        except ValueError:
            return []
    return clients.edited({name: tool, input: arguments}, _EDITS, tool=name, input=input)


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
