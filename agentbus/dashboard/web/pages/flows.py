"""The flows, and one flow with its tasks as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import NotFound
from agentbus.core.names import word
from agentbus.dashboard.task_chain import NODES, Chain, ChainLink, ChainTask
from agentbus.dashboard.web import graphs
from agentbus.dashboard.web.page import PageView, WebPage
from agentbus.tasks.flow_record import ENDED

if TYPE_CHECKING:
    from agentbus.tasks.flow_record import FlowState

# To read the states of a flow's tasks takes some requests for each that runs; see `PageView.shared`.
_REST = 40.0
BADGES = {
    **dict.fromkeys(("failed", "compensation_failed"), "critical"),
    **dict.fromkeys(("compensating", "compensated", "cancelled"), "warning"),
    "running": "active",
    "done": "healthy",
}


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested flows."""
    found = await view.shared(("flows", view.rows), lambda: view.reader.flows(view.rows))
    return {"found": found, "badges": BADGES}


async def load_one(view: PageView) -> dict[str, Any]:
    """Return the flow `id`, and its graph if that is not too large."""
    name = view.param("id")
    if not name:
        raise NotFound("the address names no flow", hint="choose one of the list")
    flow = await view.shared(("flow", name), lambda: view.reader.flow(name), _REST)

    def link(task: ChainTask) -> str:
        return view.link("task", id=task.id, group=flow.group)

    drawn = 1 < flow.size <= 2 * NODES
    return {
        "title": f"Flow {word(name)}",
        "flow": flow,
        "badges": BADGES,
        "graph": graphs.chain(_chain(flow), "", link, _names(flow)) if drawn else "",
        "is_open": flow.state == "running",
        "is_replayable": flow.state in ENDED and flow.state != "done",
    }


def _chain(flow: FlowState) -> Chain:
    """Return a flow's tasks with a link for each dependency."""
    tasks = [ChainTask(one.id, one.queue, flow.group, one.state, None, None) for one in flow.tasks]
    links = [
        ChainLink(flow.tasks[number - 1].id, one.id, "before")
        for one in flow.tasks
        for number in one.after
    ]
    return Chain(tuple(tasks), tuple(links), complete=True)


def _names(flow: FlowState) -> dict[str, str]:
    return {one.id: f"{one.number} {one.name}" for one in flow.tasks}


PAGE = WebPage("flows", "Flows", load, live=("list",))
ONE = WebPage("flow", "Flow", load_one, live=("state", "graph", "tasks"), under="flows")
