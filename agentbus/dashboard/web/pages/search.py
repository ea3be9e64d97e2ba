"""What a search has found: tasks by id, key, correlation id, or words of an error."""

from __future__ import annotations

from typing import Any

from agentbus.dashboard.web.page import PageView, WebPage


async def load(view: PageView) -> dict[str, Any]:
    """Return the tasks that match `text`, past `after`."""
    text = view.param("text").strip()
    if not text:
        return {"found": None}
    return {"found": await view.dashboard.search(text, after=view.param("after") or None)}


PAGE = WebPage("search", "Search", load, under="queues")
