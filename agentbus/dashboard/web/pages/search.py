"""The results of a search for tasks by id, key, correlation id, or words of an error."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from agentbus.dashboard.web.page import PageView, WebPage

# Seconds after which a search without a match asks whether to go on.
_SECONDS = 1.0


async def load(view: PageView) -> dict[str, Any]:
    """Return the tasks that match `text`, after the mark `after`, searching for about a second."""
    text, after = view.param("text").strip(), view.param("after") or None
    if not text:
        return {"found": None}
    read, ends = 0, time.monotonic() + _SECONDS
    while True:
        found = await view.dashboard.search(text, after=after)
        read, after = read + found.read, found.after
        if found.hits or after is None or time.monotonic() > ends:
            return {"found": replace(found, read=read)}


PAGE = WebPage("search", "Search", load, under="queues")
