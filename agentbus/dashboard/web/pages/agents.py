"""The list of agents with filters, and one agent with its holdings and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import NotFound
from agentbus.core.names import word
from agentbus.dashboard.web.page import PageView, WebPage

if TYPE_CHECKING:
    from agentbus.coordination.message import Message

_STATES = ("active", "waiting", "idle", "none", "gone")
_ORDERS = {"seen": "last seen", "name": "name", "unread": "unread", "state": "state"}


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested agents."""
    every, state = view.param("all") == "1", view.param("state") or None
    order = view.param("order") or "seen"
    found = await view.shared(
        ("agents", view.rows, state, order, every),
        lambda: view.reader.agents(
            view.rows, state=state, order=order, all=every or state == "gone"
        ),
    )
    return {"found": found, "states": _STATES, "orders": _ORDERS, "every": every}


async def load_one(view: PageView) -> dict[str, Any]:
    """Return the agent `name`."""
    name = _name(view)
    # The stream sends messages that the agent speaks while the page loads.
    since = await view.dashboard.talk_end()
    one = await view.reader.agent(name)
    return {"title": f"Agent {word(name)}", "one": one, "since": since}


def hears(view: PageView, message: Message) -> bool:
    """Tell whether a message belongs on the page: the agent itself spoke it."""
    return message.agent_id == view.param("name")


def _name(view: PageView) -> str:
    name = view.param("name")
    if not name:
        raise NotFound("the address names no agent", hint="choose one of the list")
    return name


PAGE = WebPage("agents", "Agents", load, live=("list",))
ONE = WebPage(
    "agent",
    "Agent",
    load_one,
    live=("about", "work", "received", "sent"),
    under="agents",
    hears=hears,
)
