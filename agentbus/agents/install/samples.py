"""An example of what each client sends to a hook, for a session, a directory, and a file to be edited."""

from __future__ import annotations

from typing import Any

Sample = dict[str, Any]


def sample(client: str, event: str, session: str, folder: str, path: str) -> Sample:
    """Return what a client sends at an event; `path` is the file that a tool edits."""
    return _FORMS.get(client, _common)(event, session, folder, path)


def _common(event: str, session: str, folder: str, path: str) -> Sample:
    """Return it in the form of Claude Code, which others follow."""
    edit = {"tool_name": "Edit", "tool_input": {"file_path": path}, "tool_use_id": "toolu_check"}
    return {
        "session_id": session,
        "transcript_path": "",
        "cwd": folder,
        "hook_event_name": event,
        **_given(event, edit),
    }


def _codex(event: str, session: str, folder: str, path: str) -> Sample:
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-a\n+b\n*** End Patch\n"
    tool = {"tool_name": "apply_patch", "tool_input": {"command": patch}, "turn_id": "check"}
    return _common(event, session, folder, path) | (tool if "ToolUse" in event else {})


def _copilot(event: str, session: str, folder: str, path: str) -> Sample:
    tool = {"tool_name": "Edit", "tool_input": {"path": path, "old_str": "a", "new_str": "b"}}
    said = _common(event, session, folder, path)
    del said["transcript_path"]
    return said | (tool if "ToolUse" in event else {})


def _gemini(event: str, session: str, folder: str, path: str) -> Sample:
    tool = {"tool_name": "replace", "tool_input": {"file_path": path}}
    said = _common(event, session, folder, path)
    if event.endswith("Tool"):
        return said | tool
    return said | ({"stop_hook_active": False} if event == "AfterAgent" else {})


def _cursor(event: str, session: str, folder: str, path: str) -> Sample:
    said: Sample = {
        "conversation_id": session,
        "generation_id": "check",
        "hook_event_name": event,
        "workspace_roots": [folder],
    }
    if event.endswith("ToolUse"):
        return said | {"cwd": folder, "tool_name": "Write", "tool_input": {"file_path": path}}
    return said | ({"status": "completed", "loop_count": 0} if event == "stop" else {})


def _opencode(event: str, session: str, folder: str, path: str) -> Sample:
    said: Sample = {"sessionID": session, "cwd": folder}
    if event == "tool.execute.before":
        return said | {"tool": "edit", "args": {"filePath": path}}
    if event == "tool.execute.after":
        return said | {"tool": "edit"}
    return said | ({"again": False} if event == "session.idle" else {})


def _given(event: str, edit: Sample) -> Sample:
    if event in ("PreToolUse", "PostToolUse"):
        return edit
    given: dict[str, Sample] = {
        "SessionStart": {"source": "startup"},
        "UserPromptSubmit": {"prompt": "check"},
        "Stop": {"stop_hook_active": False},
        "SessionEnd": {"reason": "other"},
    }
    return given.get(event, {})


_FORMS = {
    "codex": _codex,
    "copilot": _copilot,
    "gemini": _gemini,
    "cursor": _cursor,
    "opencode": _opencode,
}
