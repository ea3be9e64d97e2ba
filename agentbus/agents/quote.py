"""Quotes the newest message after a bell, if the user's own config file has `hook.text: quote`.

Only clients that show it to the model at the level of a tool receive it, and only after a tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.agents.bell import checked
from agentbus.coordination.frames import Frames, header
from agentbus.coordination.inbox import InboxMessage, as_message
from agentbus.core.names import is_plain
from agentbus.store.steps import Command, LinkDown, ServerReply

if TYPE_CHECKING:
    from agentbus.agents.event import Event

# Maximum characters of a message's text, and of the whole quotation.
_CUT, _MOST = 400, 1_000
_LONGEST = 64


def newest(event: Event, now: float, unread: int) -> str:
    """Return the newest message to the event's agent in a frame, '' if it cannot be read.

    The message stays unread, since the model may not have taken it. `now` is in unix seconds.
    """
    scope = event.scope
    read = Command("XREVRANGE", scope.keys.inbox(scope.agent), "+", "-", "COUNT", 1)
    try:
        page = event.execute(read)
    except (LinkDown, ServerReply):
        return ""
    if not page:
        return ""
    frames = Frames(_MOST)
    frames.add(_plain(as_message(scope.agent, *page[0])), now, cut=_CUT)
    return f"{header(1, unread)}\n{frames.text}".removesuffix("\n")


def _plain(message: InboxMessage) -> InboxMessage:
    """Return a message in which only the text can be read as a sentence."""
    return InboxMessage(
        message.id,
        checked(message.agent_id),
        message.to,
        message.text,
        _word(message.topic),
        message.thread,
        _word(message.reply_to),
        message.ask,
        message.urgent,
        message.timestamp,
        sub=_word(message.sub),
    )


def _word(said: str | None) -> str | None:
    return said if said is not None and is_plain(said) and len(said) <= _LONGEST else None
