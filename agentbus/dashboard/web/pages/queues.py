"""The queues by trouble, and one queue with its groups, its tasks by state, and its workers."""

from __future__ import annotations

from typing import Any

from agentbus.core.errors import NotFound
from agentbus.core.names import word
from agentbus.dashboard.web import graphs
from agentbus.dashboard.web.page import PageView, WebPage
from agentbus.dashboard.web.pages.queue_tasks import tasks_of


async def load(view: PageView) -> dict[str, Any]:
    """Return the queues that match."""
    rows, matching = await view.shared(
        ("queues", view.rows), lambda: view.dashboard.queues(view.rows), turn=view.reading
    )
    return {"rows": rows, "matching": matching}


async def load_one(view: PageView) -> dict[str, Any]:
    """Return the groups, the tasks and the workers of the queue `name`."""
    name = view.param("name")
    if not name:
        raise NotFound("the address names no queue", hint="choose one of the list")
    found = await view.shared(
        ("queue", name), lambda: view.dashboard.queue(name), turn=view.reading
    )
    paused = [row.paused for row in found.rows if row.paused is not None]
    return {
        "title": f"Queue {word(name)}",
        "queue": found,
        "paused": paused[0] if paused else None,
        **(await graphs.history_of(view, ("history", name), name)),
        **(await tasks_of(view, found)),
    }


PAGE = WebPage("queues", "Queues", load, live=("list",))
ONE = WebPage(
    "queue",
    "Queue",
    load_one,
    live=("state", "groups", "history", "tasks", "workers"),
    under="queues",
)
