"""Searches the inboxes for messages by sender, recipient or thread, with their receipts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentbus.coordination import inbox, receipts
from agentbus.coordination.tell import asks_approval
from agentbus.core.stream import position, text
from agentbus.dashboard.matching import FOLDED, backwards, newest
from agentbus.dashboard.parts import Parts
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, one_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.receipts import Receipt
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of inboxes to search, of the agents seen last, and of newest messages in each.
_INBOXES, _EXAMINED = 10_000, 200
# Maximum messages of a thread, and scripts that search the inbox of one participant.
_THREAD, _SCRIPTS = 200, 10
# Milliseconds by which a server's clock may have been set back since a thread began.
_BACK = 3_600_000


@dataclass(frozen=True, slots=True)
class DirectMessage:
    """A message to one agent, with its receipt; `size` is the full length of a cut text."""

    message: InboxMessage
    receipt: Receipt
    size: int

    @property
    def cut(self) -> bool:
        """Tell whether the text is cut."""
        return self.size > FOLDED

    @property
    def asks_approval(self) -> bool:
        """Tell whether a person has yet to approve or refuse something."""
        return asks_approval(self.message) and self.receipt.state != "answered"


@dataclass(frozen=True, slots=True)
class _Found:
    """A matching message, cut, and the size of its text."""

    message: InboxMessage
    size: int


class DirectMessages:
    """Messages in inboxes; the result of a search is cached longer the longer the search takes.

    Receipts are always current.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._sent = Parts(scope.monotonic, self._search_sent)
        self._of_thread = Parts(scope.monotonic, self._search_thread)

    def forget(self) -> None:
        """Make the next use search all inboxes again."""
        self._sent.forget()
        self._of_thread.forget()

    def sent(self, sender: str | None, limit: int) -> Op[list[DirectMessage]]:
        """Return the newest messages of one sender, or of all, newest first."""
        found = yield from self._sent.get((sender, limit))
        return (yield from self._with_receipts(found))

    def received(
        self, agent: str, *, sender: str | None = None, limit: int = 100
    ) -> Op[list[DirectMessage]]:
        """Return the newest messages to an agent, newest first."""
        wanted = {} if sender is None else {"agent_id": sender}
        key = self._scope.keys.inbox(agent)
        entries, _ = yield from backwards(self._scope, key, wanted, limit=limit)
        found = (_Found(inbox.message_of(agent, one.id, one.fields), one.size) for one in entries)
        return (yield from self._with_receipts(found))

    def thread(self, known: str) -> Op[list[DirectMessage]]:
        """Return the messages of a message's thread, oldest first. Raises `NotFound`, `UsageError`."""
        one = yield from message(self._scope, known)
        begun = one if one.thread == known else (yield from _kept(self._scope, one.thread))
        found = {} if begun is None else {begun.id: _cut(begun)}
        wanted = {"thread": one.thread}
        for other in (yield from self._of_thread.get(one.thread)):
            found[other.message.id] = other
        part = [one.to, one.agent_id]
        done: set[str] = set()
        while True:
            part += [agent for each in found.values() for agent in _pair(each.message)]
            waiting = [agent for agent in dict.fromkeys(part) if agent and agent not in done]
            if not waiting:
                break
            done.update(waiting)
            for agent in waiting:
                for each in (yield from self._search_inbox(agent, wanted, _since(one.thread))):
                    found[each.message.id] = each
        in_order = sorted(found.values(), key=lambda each: _position(each.message))
        return (yield from self._with_receipts(in_order[-_THREAD:]))

    def _search_sent(self, asked: tuple[str | None, int]) -> Op[list[_Found]]:
        sender, limit = asked
        wanted = {} if sender is None else {"agent_id": sender}
        agents = yield from self._agents()
        return (yield from self._search(agents, wanted, limit, _EXAMINED))

    def _search_thread(self, first: str) -> Op[list[_Found]]:
        agents = yield from self._agents()
        wanted, since = {"thread": first}, _since(first)
        return (yield from self._search(agents, wanted, _THREAD, _EXAMINED, since))

    def _search_inbox(self, agent: str, wanted: Mapping[str, str], since: str) -> Op[list[_Found]]:
        key = self._scope.keys.inbox(agent)
        entries, _ = yield from backwards(
            self._scope, key, wanted, since=since, limit=_THREAD, scripts=_SCRIPTS
        )
        return [_Found(inbox.message_of(agent, one.id, one.fields), one.size) for one in entries]

    def _search(
        self,
        agents: Sequence[str],
        wanted: Mapping[str, str],
        limit: int,
        examined: int,
        since: str = "-",
    ) -> Op[list[_Found]]:
        keys = [self._scope.keys.inbox(agent) for agent in agents]
        entries = yield from newest(
            self._scope, keys, wanted, limit=limit, examined=examined, since=since
        )
        return [
            _Found(inbox.message_of(agents[one.number], one.id, one.fields), one.size)
            for one in entries
        ]

    def _with_receipts(self, found: Iterable[_Found]) -> Op[list[DirectMessage]]:
        listed = [*found]
        states = yield from receipts.of(self._scope, [one.message for one in listed])
        return [
            DirectMessage(one.message, state, one.size)
            for one, state in zip(listed, states, strict=True)
        ]

    def _agents(self) -> Op[list[str]]:
        """Return the agents whose inboxes are searched, most recently seen first."""
        asked = Command("ZREVRANGE", self._scope.keys.agents, 0, _INBOXES - 1)
        return [text(name) for name in (yield from or_empty(one_step(asked), []))]


def message(scope: Scope, known: str) -> Op[InboxMessage]:
    """Return a message to an agent, with its whole text. Raises `NotFound`, `UsageError`."""
    if _place(known) is None:
        # Raise its error, which explains the format of an id.
        inbox.split_id(known)
    one = yield from _kept(scope, known)
    if one is None:
        raise inbox.no_message(known)
    return one


def _kept(scope: Scope, known: str) -> Op[InboxMessage | None]:
    place = _place(known)
    if place is None:
        # Another program may have stored a thread with an invalid name.
        return None
    entry_id, agent = place
    asked = one_step(Command("XRANGE", scope.keys.inbox(agent), entry_id, entry_id))
    entries = yield from or_empty(asked, [])
    return inbox.as_message(agent, *entries[0]) if entries else None


def _since(first: str) -> str:
    """Return the lowest id of a thread's messages, given the id of the first message."""
    place = _place(first)
    return "-" if place is None else f"{max(0, position(place[0])[0] - _BACK)}-0"


def _place(known: str) -> tuple[str, str] | None:
    entry_id, at, agent = known.partition("@")
    return (entry_id, agent) if at and inbox.is_entry_id(entry_id) else None


def _cut(one: InboxMessage) -> _Found:
    whole = one.text.encode("utf-8", "surrogatepass")
    short = whole[:FOLDED].decode("utf-8", "ignore")
    return _Found(one if len(whole) <= FOLDED else replace(one, text=short), len(whole))


def _pair(one: InboxMessage) -> tuple[str, str]:
    return one.to, one.agent_id


def _position(one: InboxMessage) -> tuple[int, int]:
    return position(one.id.partition("@")[0])
