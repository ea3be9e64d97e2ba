"""The registered workers: heartbeats, running and held tasks, and the lag of their groups."""

from __future__ import annotations

from typing import Any

from agentbus.dashboard.web.page import PageView, WebPage
from agentbus.dashboard.worker_pages import STATES, state_of


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested workers."""
    found = await view.reader.workers(view.rows, state=view.param("state") or None)
    return {"found": found, "states": STATES, "state_of": state_of}


PAGE = WebPage("workers", "Workers", load, live=("list",))
