"""The channel with filters, one message with its hearers, messages to agents, and one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import NotFound
from agentbus.dashboard.web.page import ROWS, PageView, TextFile, WebPage

if TYPE_CHECKING:
    from agentbus.coordination.message import Message

# Maximum number of topics that the filter offers.
_TOPICS = 200


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested messages, newest first."""
    before = view.param("before") or None
    # The stream sends messages that arrive while the page loads.
    since = await view.dashboard.talk_end()
    found = await view.reader.channel(
        topic=view.param("topic") or None,
        agent=view.param("agent") or None,
        notices=view.param("notices") != "0",
        before=before,
        limit=ROWS,
    )
    topics = await view.bus.topics()
    return {"found": found, "topics": topics[:_TOPICS], "before": before, "since": since}


def hears(view: PageView, message: Message) -> bool:
    """Tell whether a message belongs on the page: the newest page, if the filter accepts it."""
    topic, agent = view.param("topic"), view.param("agent")
    return (
        not view.param("before")
        and topic in ("", message.topic)
        and agent in ("", message.agent_id)
        and (view.param("notices") != "0" or not message.event)
    )


async def load_message(view: PageView) -> dict[str, Any]:
    """Return the message `id` of the channel, and the present agents that have heard it."""
    one = await view.reader.message(_id(view))
    heard = await view.bus.heard_by(one.id)
    return {"one": one, "heard": heard}


async def load_direct(view: PageView) -> dict[str, Any]:
    """Return the newest messages to single agents."""
    sender, to = view.param("sender").strip() or None, view.param("to").strip() or None
    found = await view.reader.direct(sender=sender, to=to, limit=ROWS)
    return {"found": found}


async def load_thread(view: PageView) -> dict[str, Any]:
    """Return the thread of the message `id`."""
    found = await view.reader.thread(_id(view))
    ids = {each.message.id for each in found}
    return {"found": found, "ids": ids, "named": view.param("id")}


async def whole(view: PageView) -> tuple[str, str]:
    """Return the whole text of the message `id`, from the channel or an inbox."""
    known = _id(view)
    if "@" in known:
        return f"message-{known}", (await view.reader.direct_message(known)).text
    return f"message-{known}", (await view.reader.message(known)).text


def _id(view: PageView) -> str:
    known = view.param("id")
    if not known:
        raise NotFound("the address names no message", hint="choose one of the list")
    return known


PAGE = WebPage("talk", "Talk", load, hears=hears)
MESSAGE = WebPage("spoken", "Message", load_message, live=("heard",), under="talk")
DIRECT = WebPage("direct", "Messages to agents", load_direct, live=("list",), under="talk")
THREAD = WebPage("thread", "Thread", load_thread, live=("thread",), under="talk")
TEXT = TextFile("message-text", whole)
