"""Reads the channel backwards, page by page."""

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
    """Messages of the channel, newest first; `older` is the id before which more follow, or None.

    A text of more than 4,000 bytes is cut; `cut` maps the ids of these messages to the sizes of
    their texts in bytes.
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
    """Return the newest messages of a topic or agent; without `notices`, omit those of the bus."""
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
