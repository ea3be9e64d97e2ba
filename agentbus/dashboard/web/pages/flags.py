"""Flags with their holders and waiters, leases, and the number of recently refused leases."""

from __future__ import annotations

from typing import Any

from agentbus.coordination.flags import SILENT
from agentbus.dashboard.figures import RowRange
from agentbus.dashboard.web.page import PageView, WebPage

# A project has at most 500 leases.
_LEASES = 500


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested flags and leases."""
    found = await view.reader.flags(
        view.rows,
        state=view.param("state") or None,
        leases=RowRange(view.param("lease").strip() or None, limit=_LEASES),
    )
    waiters: dict[str, list[Any]] = {}
    for one in found.waiters:
        waiters.setdefault(one.flag, []).append(one)
    refused = await view.reader.refusals()
    return {"found": found, "waiters": waiters, "refused": refused, "silent": SILENT}


PAGE = WebPage("flags", "Flags and leases", load, live=("flags", "leases", "refused"))
