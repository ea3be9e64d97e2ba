"""The agents of a project, page by page, and the details of one agent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.admin import project
from agentbus.coordination import leases, presence, waiters
from agentbus.coordination.presence import Presence
from agentbus.core import names
from agentbus.core.errors import NotFound
from agentbus.dashboard import channel_pages
from agentbus.dashboard.parts import Part, Parts
from agentbus.queues import by_hand
from agentbus.workers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.admin.project import AgentActivity
    from agentbus.coordination.flags import FlagState
    from agentbus.coordination.leases import Lease
    from agentbus.coordination.message import Message
    from agentbus.coordination.waiters import Waiter
    from agentbus.dashboard.channel_pages import ChannelPage
    from agentbus.dashboard.dashboard import Dashboard
    from agentbus.dashboard.direct_messages import DirectMessage, DirectMessages
    from agentbus.dashboard.figures import RowRange
    from agentbus.queues.by_hand import HeldTask
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered

ORDERS = ("seen", "name", "unread", "state")
_STATES = (*names.STATES[:-1], None, names.STATES[-1])
# Maximum number of entries on an agent's page, for each of messages spoken, sent and received.
_ENTRIES = 50


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent in a list: its presence, the tasks that it holds by hand, and its workers.

    `workers` counts the live ones, and `running` the tasks that they run.
    """

    presence: Presence
    tasks: int
    workers: int
    running: int


@dataclass(frozen=True, slots=True)
class AgentPage:
    """Agents of a project: the requested rows, the number of matches, and that number by state.

    The state of an agent that only used the channel is `none`.
    """

    rows: tuple[AgentRow, ...]
    matching: int
    states: dict[str, int]


@dataclass(frozen=True, slots=True)
class AgentDetail:
    """One agent: its presence, what it holds and waits for, and its messages.

    `activity` has its position in the channel, None if it never used the channel. `flags` are those that
    it holds, `waits` those that it waits for, `tasks` those that it holds by hand. `received` are the
    newest messages to it, `sent` those that it sent to other agents, `spoken` those that it spoke on the
    channel; each has the newest 50, newest first.
    """

    agent: str
    presence: Presence | None
    activity: AgentActivity | None
    leases: tuple[Lease, ...]
    flags: tuple[FlagState, ...]
    waits: tuple[Waiter, ...]
    tasks: tuple[HeldTask, ...]
    workers: tuple[Registered, ...]
    received: tuple[DirectMessage, ...]
    sent: tuple[DirectMessage, ...]
    spoken: tuple[Message, ...]
    cut: dict[str, int]


class AgentList:
    """The agents of a project: long lists are cached for longer; the rows shown are current."""

    def __init__(
        self,
        scope: Scope,
        flag_states: Callable[[], Op[Sequence[FlagState]]],
        direct: DirectMessages,
        dashboard: Dashboard[Any] | None,
    ) -> None:
        self._scope, monotonic = scope, scope.monotonic
        self._flags, self._direct, self._dashboard = flag_states, direct, dashboard
        self._known = Part(monotonic, lambda: presence.present(scope, every=True, limit=None))
        self._there = Part(monotonic, lambda: presence.present(scope, limit=None))
        self._tasks = Part(monotonic, lambda: by_hand.all_held(scope))
        self._workers = Part(monotonic, lambda: registry.workers(scope))
        self._spoken: Parts[str, ChannelPage] = Parts(
            monotonic, lambda agent: channel_pages.page(scope, agent=agent, limit=_ENTRIES)
        )

    def forget(self) -> None:
        """Make the next use read every list again."""
        for one in (self._known, self._there, self._tasks, self._workers, self._spoken):
            one.forget()

    def page(self, wanted: RowRange, state: str | None, order: str, every: bool) -> Op[AgentPage]:
        """Return a page of agents, in one of `ORDERS`; `every` adds agents that are gone."""
        known = None if self._dashboard is None else self._dashboard.present
        if every or known is None:
            known = yield from (self._known if every else self._there).get()
        tasks = yield from self._tasks.get()
        workers = [each for each in (yield from self._workers.get()) if each.alive]
        seen = {one.agent for one in known}
        # An agent whose worker only uses its queue has no presence.
        known = [*known, *_by_workers([each for each in workers if each.agent_id not in seen])]
        if wanted.match is not None:
            text = wanted.match.casefold()
            known = [one for one in known if any(text in part.casefold() for part in _words(one))]
        counts: dict[str, int] = {}
        for one in known:
            counts[one.state or "none"] = counts.get(one.state or "none", 0) + 1
        if state is not None:
            known = [one for one in known if (one.state or "none") == state]
        known = _ordered(known, order)
        shown = known[max(0, wanted.offset) :][: max(0, wanted.limit)]
        fresh = yield from presence.of(self._scope, [one.agent for one in shown])
        held = Counter(one.agent_id for one in tasks)
        live, running = Counter[str](), Counter[str]()
        for worker in workers:
            live[worker.agent_id] += 1
            running[worker.agent_id] += worker.running
        rows = tuple(
            AgentRow(now or before, *(each[before.agent] for each in (held, live, running)))
            for before, now in zip(shown, fresh, strict=True)
        )
        return AgentPage(rows, len(known), counts)

    def one(self, agent: str) -> Op[AgentDetail]:
        """Return one agent. Raises `NotFound` if the project has no data about it."""
        scope = self._scope
        (now,) = yield from presence.of(scope, [agent])
        activity = yield from project.agent(scope, agent)
        leased = yield from leases.leases(scope)
        waiting = yield from waiters.waiters(scope)
        states = yield from self._flags()
        tasks = yield from self._tasks.get()
        workers = yield from self._workers.get()
        received = yield from self._direct.received(agent, limit=_ENTRIES)
        sent = yield from self._direct.sent(agent, _ENTRIES)
        spoken = yield from self._spoken.get(agent)
        found = AgentDetail(
            agent,
            now,
            activity,
            tuple(one for one in leased if one.agent == agent),
            tuple(one for one in states if one.state == "held" and one.agent_id == agent),
            tuple(one for one in waiting if one.agent_id == agent),
            tuple(one for one in tasks if one.agent_id == agent),
            tuple(one for one in workers if one.agent_id == agent),
            tuple(received),
            tuple(sent),
            spoken.messages,
            spoken.cut,
        )
        holds = found.leases or found.flags or found.tasks or found.workers
        talks = found.received or found.sent or found.spoken
        if now is None and not (activity or holds or talks):
            raise NotFound(
                f"nobody was ever here by the name of {names.word(agent)}",
                hint="the list of agents has all that were",
            )
        return found


def _words(one: Presence) -> Sequence[str]:
    return [part for part in (one.agent, one.doing, one.client, one.host, one.branch) if part]


def _ordered(found: Sequence[Presence], order: str) -> list[Presence]:
    if order == "name":
        return sorted(found, key=lambda one: one.agent)
    if order == "unread":
        return sorted(found, key=lambda one: (-one.unread, -one.seen))
    if order == "state":
        return sorted(found, key=lambda one: (_STATES.index(one.state), -one.seen))
    return sorted(found, key=lambda one: -one.seen)


def _by_workers(workers: Sequence[Registered]) -> list[Presence]:
    """Return the presence of agents that are known only from their workers."""
    last: dict[str, Registered] = {}
    for one in workers:
        if one.agent_id not in last or one.seen > last[one.agent_id].seen:
            last[one.agent_id] = one
    return [
        Presence(agent, None, one.seen, None, one.host, None, None, (), 0, pid=one.pid)
        for agent, one in last.items()
    ]
