"""Gemini CLI: its hooks' input and output."""

from __future__ import annotations

from agentbus.agents import clients
from agentbus.agents.clients import claude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    "SessionStart": "start",
    "BeforeAgent": "turn",
    "AfterTool": "tool",
    "BeforeTool": "edit",
    "AfterAgent": "stop",
    "SessionEnd": "end",
}
_EDITS = dict.fromkeys(("replace", "write_file"), ("file_path",))

session = claude.session
context = claude.context


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths that a tool is about to edit."""
    return clients.edited(given, _EDITS, tool="tool_name", input="tool_input")


def stopped_before(given: Mapping[str, Any]) -> bool:
    """Tell whether this turn goes on because its end was refused."""
    return given.get("stop_hook_active", False) is not False


def deny(event: str, text: str) -> object:
    """Return the answer that refuses a tool."""
    return {"decision": "deny", "reason": text}


# The end of a turn is refused in the same way.
go_on = deny
