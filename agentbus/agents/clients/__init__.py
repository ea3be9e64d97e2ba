"""The clients: what the hooks of each one send, and the JSON that each one takes as an answer.

A client's module has `EVENTS` (its events, and what each is for AgentBus), `session` (the id of the
session), `edited` (the paths that a tool is about to edit), `stopped_before` (whether the end of a turn was
refused once already), and `context`, `deny` and `go_on`, which make an answer of a text, or None where the
client takes none. Their common part reads fields of what a client sends, which may hold anything.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CLIENTS = ("claude", "codex", "copilot", "gemini", "cursor", "opencode")


def load(client: str) -> Any:
    """Import and return the module of a client."""
    return __import__(f"{__name__}.{client}", fromlist=("EVENTS",))


def text(given: Mapping[str, Any], *fields: str) -> str | None:
    """Return the first of these fields that is a text with at least one character."""
    for field in fields:
        found = given.get(field)
        if isinstance(found, str) and found:
            return found
    return None


def part(given: Mapping[str, Any], *fields: str) -> Mapping[str, Any]:
    """Return the first of these fields that is an object; an empty one if there is none."""
    for field in fields:
        found = given.get(field)
        if isinstance(found, dict):
            return found
    return {}


def edited(
    given: Mapping[str, Any], tools: Mapping[str, tuple[str, ...]], *, tool: str, input: str
) -> list[str]:
    """Return the path that one of `tools` is about to edit, by the fields in which each has it."""
    fields = tools.get(text(given, tool) or "")
    found = None if fields is None else text(part(given, input), *fields)
    return [] if found is None else [found]


def patched(patch: str) -> list[str]:
    """Return the paths in a patch of the tool `apply_patch`."""
    found = []
    for line in patch.splitlines():
        for mark in ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "):
            if line.startswith(mark):
                path = line[len(mark) :].strip()
                if path and path not in found:
                    found.append(path)
    return found
