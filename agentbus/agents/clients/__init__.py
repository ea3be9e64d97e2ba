"""The clients: what the hooks of each one send, and the JSON that each one takes as an answer.

A client's module has `EVENTS` (its events, and what each is for AgentBus), `session` (the id of the
session), `edited` (the paths that a tool is about to edit), `stopped_before` (whether the end of a turn was
refused once already), and `context`, `deny` and `go_on`, which make an answer of a text, or None where the
client takes none.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLIENTS = ("claude", "codex", "copilot", "gemini", "cursor", "opencode")


def load(client: str) -> Any:
    """Import and return the module of a client."""
    return __import__(f"{__name__}.{client}", fromlist=("EVENTS",))
