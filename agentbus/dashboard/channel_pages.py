"""Reads the channel backwards, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentbus.coordination import inbox
from agentbus.coordination.overhear import claimed, heard, written
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.stream import text
from agentbus.dashboard.matching import FOLDED, backwards
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from agentbus.coordination.message import Message
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


@dataclass(frozen=True, slots=True)
class ChannelPage:
    """Messages of the channel, newest first; before `older` there are more, if it is not None.

    A text of more than 4,000 bytes is cut; `cut` has the size of each such one in bytes, by message.
    """

    messages: tuple[Message, ...]
    older: str | None
    cut: dict[str, int]


def page(
    scope: Scope,
    *,
    topic: str | None = None,
    agent: str | None = None,
    notices: bool = True,
    before: str | None = None,
    limit: int = 100,
) -> Op[ChannelPage]:
    """Return the newest messages of a topic and of an agent; without `notices`, none of the bus itself."""
    if before is not None and not inbox.is_entry_id(before):
        raise UsageError(
            f"{before!a:.80} is not the id of a message", hint="give one that a page has"
        )
    wanted = {} if topic is None else {"topic": topic}
    wanted |= {} if agent is None else {"agent_id": agent}
    wanted |= {} if notices else {"event": ""}
    key = scope.keys.channel
    found, older = yield from backwards(scope, key, wanted, before=before, limit=limit)
    cut = {one.id: one.size for one in found if one.size > FOLDED}
    return ChannelPage(tuple(heard(one.id, claimed(one.fields)) for one in found), older, cut)


def message(scope: Scope, entry_id: str) -> Op[Message]:
    """Return a message of the channel, with its whole text. Raises `NotFound`."""
    entries = []
    if inbox.is_entry_id(entry_id):
        entries = yield Command("XRANGE", scope.keys.channel, entry_id, entry_id)
    if not entries:
        raise NotFound(
            f"the channel has no message {entry_id!a:.80}", hint="the oldest messages are trimmed"
        )
    return heard(text(entries[0][0]), written(entries[0][1]))
