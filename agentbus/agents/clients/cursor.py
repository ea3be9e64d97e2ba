"""Cursor: its hooks' input and output, after its documentation."""

from __future__ import annotations

from agentbus.agents import clients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    "sessionStart": "start",
    "beforeSubmitPrompt": "turn",
    "postToolUse": "tool",
    "preToolUse": "edit",
    "stop": "stop",
    "sessionEnd": "end",
}
_EDITS = dict.fromkeys(("Write", "StrReplace", "Edit"), ("file_path", "path"))


def session(given: Mapping[str, Any]) -> str | None:
    """Return the id of the session: that of its conversation."""
    return clients.text(given, "session_id", "conversation_id")


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths that a tool is about to edit."""
    return clients.edited(given, _EDITS, tool="tool_name", input="tool_input")


def stopped_before(given: Mapping[str, Any]) -> bool:
    """Tell whether this turn goes on because its end was refused."""
    return bool(given.get("loop_count", 0) != 0)


def context(event: str, text: str) -> object:
    """Return the answer that adds a text to what the model reads; a prompt takes none."""
    return None if event == "beforeSubmitPrompt" else {"additional_context": text}


def deny(event: str, text: str) -> object:
    """Return the answer that refuses a tool."""
    return {"permission": "deny", "agent_message": text}


def go_on(event: str, text: str) -> object:
    """Return the answer that has the agent go on."""
    return {"followup_message": text}
