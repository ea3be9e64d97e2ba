"""Finds messages to single agents in all inboxes: by sender, by recipient, and by thread, with receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.coordination import inbox, receipts
from agentbus.core import names
from agentbus.core.record import Record
from agentbus.core.stream import position, text
from agentbus.dashboard.matching import FOLDED, StreamEntry, backwards, newest
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, one_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.receipts import Receipt
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# The inboxes that are searched, those of the agents seen last; and of each the newest messages.
INBOXES, _EXAMINED = 10_000, 200
# The most messages of a thread, and the most that are examined of an inbox of one who takes part.
_THREAD, _TAKEN_PART = 200, 2_000


class DirectMessage(Record):
    """A message to one agent, and how far it got; a text of more than 4,000 bytes is cut, of `size`."""

    message: InboxMessage
    receipt: Receipt
    size: int

    @property
    def cut(self) -> bool:
        """Whether the text is cut."""
        return self.size > FOLDED


def found(
    scope: Scope, *, sender: str | None = None, to: str | None = None, limit: int = 100
) -> Op[list[DirectMessage]]:
    """Return the newest messages of a sender, to an agent, or of all, newest first.

    It searches the newest 200 messages in the inboxes of the 10,000 agents seen last.
    """
    wanted = {} if sender is None else {"agent_id": names.name("agent", sender)}
    if to is not None:
        names.name("agent", to)
        entries, _ = yield from backwards(scope, scope.keys.inbox(to), wanted, limit=limit)
        return (yield from _with_receipts(scope, [to], entries))
    agents = yield from _agents(scope)
    keys = [scope.keys.inbox(agent) for agent in agents]
    entries = yield from newest(scope, keys, wanted, limit=limit, examined=_EXAMINED)
    return (yield from _with_receipts(scope, agents, entries))


def thread(scope: Scope, known: str) -> Op[list[DirectMessage]]:
    """Return the messages of a message's thread that are kept, oldest first, at most the newest 200.

    It looks into the inboxes of those who take part, and then into all others. Raises `NotFound`.
    """
    one = yield from message(scope, known)
    first = one.thread
    wanted = {"thread": first}
    part = dict.fromkeys((one.to, one.agent_id))
    collected: dict[str, DirectMessage] = {}
    if first != known and (begun := (yield from _kept(scope, first))) is not None:
        one = begun
    if one.id == first:
        part |= dict.fromkeys((one.to, one.agent_id))
        collected |= yield from _first(scope, one)
    done: set[str] = set()
    while waiting := [agent for agent in part if agent and agent not in done]:
        keys = [scope.keys.inbox(agent) for agent in waiting]
        entries = yield from newest(
            scope, keys, wanted, limit=_THREAD, examined=_TAKEN_PART, width=FOLDED
        )
        new = yield from _with_receipts(scope, waiting, entries)
        done.update(waiting)
        collected |= {each.message.id: each for each in new}
        part |= dict.fromkeys(each.message.agent_id for each in new)
    others = [agent for agent in (yield from _agents(scope)) if agent not in done]
    keys = [scope.keys.inbox(agent) for agent in others]
    entries = yield from newest(scope, keys, wanted, limit=_THREAD, examined=_EXAMINED)
    collected |= {
        each.message.id: each for each in (yield from _with_receipts(scope, others, entries))
    }
    in_order = sorted(collected.values(), key=lambda each: position(_entry_id(each)))
    return in_order[-_THREAD:]


def message(scope: Scope, known: str) -> Op[InboxMessage]:
    """Return a message to an agent, with its whole text. Raises `NotFound`, `UsageError`."""
    one = yield from _kept(scope, known)
    if one is None:
        raise inbox.no_message(known)
    return one


def _kept(scope: Scope, known: str) -> Op[InboxMessage | None]:
    entry_id, agent = inbox.split_id(known)
    asked = one_step(Command("XRANGE", scope.keys.inbox(agent), entry_id, entry_id))
    entries = yield from or_empty(asked, [])
    return inbox.as_message(agent, *entries[0]) if entries else None


def _first(scope: Scope, one: InboxMessage) -> Op[dict[str, DirectMessage]]:
    (receipt,) = yield from receipts.of(scope, [one])
    size = len(one.text.encode("utf-8", "surrogatepass"))
    return {one.id: DirectMessage(one.__replace__(text=one.text[:FOLDED]), receipt, size)}


def _with_receipts(
    scope: Scope, agents: Sequence[str], entries: Sequence[StreamEntry]
) -> Op[list[DirectMessage]]:
    read = [
        inbox.message_of(agents[entry.number], entry.id, dict(entry.fields)) for entry in entries
    ]
    states = yield from receipts.of(scope, read)
    return [
        DirectMessage(one, state, entry.size)
        for one, state, entry in zip(read, states, entries, strict=True)
    ]


def _agents(scope: Scope) -> Op[list[str]]:
    """Return the agents whose inboxes are searched, last seen first."""
    asked = Command("ZREVRANGE", scope.keys.agents, 0, INBOXES - 1)
    return [text(name) for name in (yield from or_empty(one_step(asked), []))]


def _entry_id(one: DirectMessage) -> str:
    return one.message.id.partition("@")[0]
