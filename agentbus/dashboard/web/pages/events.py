"""The streams of events with their relays and consumers, and the consumers in quarantine."""

from __future__ import annotations

from typing import Any

from agentbus.dashboard.web.page import PageView, WebPage


async def load(view: PageView) -> dict[str, Any]:
    """Return the streams and the quarantine."""
    return {"found": await view.reader.events()}


PAGE = WebPage("events", "Events", load, live=("quarantine", "streams", "consumers"))
