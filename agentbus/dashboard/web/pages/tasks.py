"""The tasks of the project in any state, newest first, finished ones among them."""

from __future__ import annotations

from typing import Any

from agentbus.core.stream import id_time
from agentbus.core.timespec import since
from agentbus.dashboard.web.page import PageView, WebPage
from agentbus.queues.state import STATES

_ROWS = 50
# The filters, beside the state, by the parameters of the query.
_FIELDS = {
    "queue": "Queue",
    "name": "Name of the task",
    "since": "Since (2h, 2026-11-28)",
    "text": "Id, key, error",
}


async def load(view: PageView) -> dict[str, Any]:
    """Return the newest tasks that the filters `state`, `queue`, `name`, `since` and `text` match."""
    given = {name: view.param(name).strip() or None for name in ("state", *_FIELDS)}
    start = given.pop("since")
    table = await view.dashboard.task_list(
        **given, since=None if start is None else id_time(since(start, view.now)), limit=_ROWS
    )
    return {"table": table, "states": STATES, "fields": _FIELDS}


PAGE = WebPage("tasks", "Tasks", load)
