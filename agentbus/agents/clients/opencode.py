"""OpenCode: what AgentBus's plugin for it passes on, and what that takes as an answer."""

from __future__ import annotations

from agentbus.agents import clients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    "session.created": "start",
    "chat.message": "turn",
    "tool.execute.after": "tool",
    "tool.execute.before": "edit",
    "session.idle": "stop",
    "session.deleted": "end",
    # From the plugin, when the session is idle.
    "Wake": "wake",
}
# True: the plugin runs the hook that waits after the hook of a turn's end has answered.
WAITS_WHEN_IDLE = True
_EDITS = dict.fromkeys(("edit", "write", "multiedit"), ("filePath",))
_PATCHES = ("apply_patch", "patch")


def session(given: Mapping[str, Any]) -> str | None:
    """Return the id of the session."""
    return clients.text(given, "sessionID")


def edited(given: Mapping[str, Any]) -> list[str]:
    """Return the paths that a tool is about to edit."""
    if given.get("tool") in _PATCHES:
        return clients.patched(clients.text(clients.part(given, "args"), "patchText") or "")
    return clients.edited(given, _EDITS, tool="tool", input="args")


def stopped_before(given: Mapping[str, Any]) -> bool:
    """Tell whether this turn goes on because its end was refused: the plugin says so."""
    return given.get("again", False) is not False


def context(event: str, text: str) -> object:
    """Return the text that the plugin adds to a tool's output, or to the prompt."""
    return {"context": text}


def named(agent: str, answer: object) -> object:
    """Return the answer to a session that begins, with the name that the plugin gives to its shells."""
    return {**(answer if isinstance(answer, dict) else {}), "agent": agent}


def deny(event: str, text: str) -> object:
    """Return the text of the error by which the plugin refuses a tool."""
    return {"deny": text}


def go_on(event: str, text: str) -> object:
    """Return the prompt with which the plugin has the agent go on."""
    return {"prompt": text}


# A prompt, too.
woken = go_on


def waits(pid: int | None) -> bool:
    """Tell whether the client goes on while a hook waits: the plugin does."""
    return True
