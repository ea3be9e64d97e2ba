"""Claude Code: its hooks' input and output."""

from __future__ import annotations

from agentbus.agents import clients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Events that other clients have, too.
COMMON = {
    "SessionStart": "start",
    "UserPromptSubmit": "turn",
    "PostToolUse": "tool",
    "PreToolUse": "edit",
    "Stop": "stop",
    "SessionEnd": "end",
}
# Wake is a second hook of Stop: it is asynchronous and may make the agent go on later.
EVENTS = {**COMMON, "Wake": "wake"}
# False: the client runs the hook of a turn's end and the one that waits at the same time.
WAITS_WHEN_IDLE = False
_EDITS = {
    **dict.fromkeys(("Edit", "Write", "MultiEdit"), ("file_path",)),
    "NotebookEdit": ("notebook_path", "file_path"),
}


def session(given: Mapping[str, Any]) -> str | None:
    """Return the id of the session."""
    return clients.text(given, "session_id")


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths that a tool is about to edit."""
    return clients.edited(given, _EDITS, tool="tool_name", input="tool_input")


def stopped_before(given: Mapping[str, Any]) -> bool:
    """Tell whether this turn goes on because its end was refused."""
    return given.get("stop_hook_active") is not False


def context(event: str, text: str) -> object:
    """Return the answer that adds a text to what the model reads."""
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def deny(event: str, text: str) -> object:
    """Return the answer that refuses a tool."""
    return {
        "hookSpecificOutput": {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": text,
        }
    }


def go_on(event: str, text: str) -> object:
    """Return the answer that refuses the end of a turn."""
    return {"decision": "block", "reason": text}


def woken(event: str, text: str) -> object:
    """Return the answer that begins a turn: none, since the text on stderr and exit code 2 do."""
    return None


def waits(pid: int | None) -> bool:
    """Tell whether the client's process goes on while a hook waits, and takes its answer later."""
    from agentbus.agents.clients import _claude

    return _claude.waits(pid)
