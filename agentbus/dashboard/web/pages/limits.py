"""The limits of queues, with the tasks that run and wait under each."""

from __future__ import annotations

from typing import Any

from agentbus.dashboard.web.page import PageView, WebPage


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested limits."""
    return {
        "found": await view.shared(("limits", view.rows), lambda: view.reader.limits(view.rows))
    }


PAGE = WebPage("limits", "Limits", load, live=("list",))
