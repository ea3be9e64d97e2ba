"""The notes, newest first, filtered by a part of the key and by tag."""

from __future__ import annotations

from typing import Any

from agentbus.core.errors import NotFound
from agentbus.dashboard.web.page import PageView, TextFile, WebPage

# Maximum number of tags that the filter offers.
_TAGS = 60


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested notes."""
    found = await view.reader.notes(view.rows, tag=view.param("tag") or None)
    return {"found": found, "tags": [*found.tags.items()][:_TAGS]}


async def whole(view: PageView) -> tuple[str, str]:
    """Return the whole value of the note `key`."""
    key = view.param("key")
    if not key:
        raise NotFound("the address names no note", hint="choose one of the list")
    return f"note-{key}", (await view.bus.recall(key)).value or ""


PAGE = WebPage("notes", "Notes", load, live=("list",))
TEXT = TextFile("note-text", whole)
