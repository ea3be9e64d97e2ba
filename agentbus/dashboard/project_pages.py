"""Reads the data of a dashboard's pages beyond its snapshots, only when a page is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.admin import health, quarantine
from agentbus.admin.health import thresholds
from agentbus.coordination import flags, leases, waiters
from agentbus.coordination.flags import FlagState
from agentbus.core import names
from agentbus.core.errors import NotFound, UsageError
from agentbus.dashboard import (
    channel_pages,
    check_list,
    direct_messages,
    event_streams,
    work_pages,
)
from agentbus.dashboard.agent_pages import ORDERS, AgentList
from agentbus.dashboard.direct_messages import DirectMessages
from agentbus.dashboard.figures import RowRange
from agentbus.dashboard.flag_list import with_awaited
from agentbus.dashboard.note_pages import NoteList
from agentbus.dashboard.parts import Part
from agentbus.dashboard.refusals import RefusalTail
from agentbus.dashboard.worker_pages import STATES, WorkersRead
from agentbus.store.verb import BusT_co, OnBus, verb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbus.coordination.inbox import InboxMessage
    from agentbus.coordination.leases import Lease
    from agentbus.coordination.message import Message
    from agentbus.coordination.waiters import Waiter
    from agentbus.dashboard.agent_pages import AgentDetail, AgentPage
    from agentbus.dashboard.channel_pages import ChannelPage
    from agentbus.dashboard.check_list import HealthChecks
    from agentbus.dashboard.dashboard import Dashboard
    from agentbus.dashboard.direct_messages import DirectMessage
    from agentbus.dashboard.event_streams import EventOverview
    from agentbus.dashboard.note_pages import NotePage
    from agentbus.dashboard.refusals import Refusals
    from agentbus.dashboard.work_pages import FlowPage, LimitPage, SchedulePage
    from agentbus.dashboard.worker_pages import WorkerPage
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.tasks.flow_record import FlowState

_PAGE = RowRange(limit=100)
# Maximum number of flags per script.
_AT_ONCE = 100
_FLAG_STATES = ("held", "satisfied", "failed")
_AGENT_STATES = (*names.STATES, "none")


@dataclass(frozen=True, slots=True)
class FlagPage:
    """Flags, awaited and held ones first, and leases: the requested rows, and numbers of matches.

    `waiters` are all agents that wait for a flag; a free flag is listed if it is awaited. `states`
    counts the matching flags that are not free, by state. `silent` has the seconds since the holders of
    these flags were last seen, by agent.
    """

    flags: tuple[FlagState, ...]
    matching_flags: int
    states: dict[str, int]
    waiters: tuple[Waiter, ...]
    leases: tuple[Lease, ...]
    matching_leases: int
    silent: Mapping[str, float]


class Pages(OnBus[BusT_co]):
    """Reads the data of a dashboard's pages, for the project of a `Bus` or an `AsyncBus`.

    Names and texts to match are data: any text may be given, as another program may have written
    it. Concurrent calls are allowed. Lists that take long to read are read less often, and shared
    by all readers; the rows that a page shows are current. Nothing is marked as read. With a
    `dashboard`, the agents, the flags and the findings of health are those of its last snapshot, if
    there is one. Raises `ConfigError` for wrong thresholds.
    """

    def __init__(self, bus: Any, dashboard: Dashboard[Any] | None = None) -> None:
        self._bus, self._dashboard = bus, dashboard
        self._scope: Scope = bus.scope
        self._run, self._iterate = bus._run, bus._iterate
        self._policies: Policies = bus.runner.policies
        self._letters_of = self._policies.letters_of
        scope, monotonic = self._scope, self._scope.monotonic
        self._flags = Part(monotonic, self._flag_states)
        self._direct = DirectMessages(scope)
        self._agents = AgentList(scope, self._flags.get, self._direct, dashboard)
        self._notes = NoteList(scope)
        self._workers = WorkersRead(scope)
        self._refusals = RefusalTail(scope)
        self._refused = Part(monotonic, self._refusals.read)
        self._events = Part(monotonic, lambda: event_streams.overview(scope))
        self._thresholds = thresholds.read(bus.settings)
        self._health = Part(monotonic, lambda: health.examine(scope, bus.settings))
        self._values = Part(
            monotonic,
            lambda: check_list.worst_values(scope, self._thresholds, self._letters_of),
        )

    def forget(self) -> None:
        """Make the next page read every list again, after an action that changed them."""
        for one in (self._flags, self._agents, self._direct, self._notes, self._workers):
            one.forget()
        for part in (self._events, self._health, self._values):
            part.forget()

    # -- agents --

    @verb
    def agents(
        self,
        rows: RowRange = _PAGE,
        *,
        state: str | None = None,
        order: str = "seen",
        all: bool = False,
    ) -> Op[AgentPage]:
        """Return a page of the present agents; with `all`, include those that are gone.

        `rows.match` is a part of a name, client, host, branch, or description of an agent's work.
        `state` is `active`, `idle`, `waiting`, `gone`, or `none` for agents that only used the
        channel. `order` is `seen` (last seen first), `name`, `unread` or `state`. Raises
        `UsageError`.
        """
        _one_of("state", state, _AGENT_STATES)
        _one_of("order", order, ORDERS)
        return self._agents.page(rows, state, order, all)

    @verb
    def agent(self, name: str) -> Op[AgentDetail]:
        """Return one agent: what it holds, waits for, has received and sent, and its last 50 messages.

        Its sent messages are searched in the inboxes of the 10,000 agents seen last, among the
        newest 200 messages of each. Raises `NotFound`.
        """
        return self._agents.one(name)

    # -- talk --

    @verb
    def channel(
        self,
        *,
        topic: str | None = None,
        agent: str | None = None,
        notices: bool = True,
        before: str | None = None,
        limit: int = 100,
    ) -> Op[ChannelPage]:
        """Return the newest messages of the channel, of a topic, or of an agent.

        `before` is the id before which a page begins, the `older` of the previous page; without
        `notices` the bus's own notices are omitted. Raises `UsageError`.
        """
        return channel_pages.page(
            *(self._scope,), topic=topic, agent=agent, notices=notices, before=before, limit=limit
        )

    @verb
    def message(self, id: str) -> Op[Message]:
        """Return one message of the channel, with its whole text. Raises `NotFound`."""
        return channel_pages.message(self._scope, id)

    @verb
    def direct(
        self, *, sender: str | None = None, to: str | None = None, limit: int = 100
    ) -> Op[list[DirectMessage]]:
        """Return the newest messages to single agents, with receipts, newest first.

        They are searched as in `agent`, or with `to` only in that agent's inbox.
        """
        if to is None:
            return self._direct.sent(sender, limit)
        return self._direct.received(to, sender=sender, limit=limit)

    @verb
    def direct_message(self, id: str) -> Op[InboxMessage]:
        """Return one message to an agent, with its whole text. Raises `NotFound`, `UsageError`."""
        return direct_messages.message(self._scope, id)

    @verb
    def thread(self, id: str) -> Op[list[DirectMessage]]:
        """Return the messages of a message's thread, oldest first, at most the newest 200.

        Messages exist as long as in inboxes; the search covers the inboxes of all participants,
        then others as in `agent`. Raises `NotFound`, `UsageError`.
        """
        return self._direct.thread(id)

    # -- flags and leases --

    @verb
    def flags(
        self, rows: RowRange = _PAGE, *, state: str | None = None, leases: RowRange = _PAGE
    ) -> Op[FlagPage]:
        """Return a page of the flags, a page of the leases, and all agents that wait for flags.

        A match is a part of a flag's name or its holder's name, or of a lease's pattern, agent or
        reason.
        """
        _one_of("state", state, _FLAG_STATES)
        return self._flag_page(rows, state, leases)

    @verb
    def refusals(self) -> Op[Refusals]:
        """Return the number of leases refused in the last day, from the metrics stream."""
        return self._refused.get()

    @verb
    def end_lease(self, agent: str, pattern: str, token: int) -> Op[Lease]:
        """End an agent's lease of a pattern with this token, and wake the agents that wait for it.

        Raises `NotFound` if it is over.
        """
        return self._end_lease(agent, pattern, token)

    @verb
    def end_leases(self, agent: str) -> Op[list[Lease]]:
        """End all leases of an agent, atomically, and return them."""
        return leases.end_of(self._scope, names.name("agent", agent))

    # -- notes, workers, events, health --

    @verb
    def notes(self, rows: RowRange = _PAGE, *, tag: str | None = None) -> Op[NotePage]:
        """Return a page of the notes with a tag whose keys match, newest first."""
        return self._notes.page(rows, tag)

    @verb
    def workers(self, rows: RowRange = _PAGE, *, state: str | None = None) -> Op[WorkerPage]:
        """Return a page of the registered workers, by queue, with the lags of their groups.

        `rows.match` is a part of a queue, group, agent, worker or host; `state` is `working`, `paused`,
        `stopping` or `dead`.
        """
        _one_of("state", state, STATES)
        return self._workers.page(rows, state)

    @verb
    def schedules(self, rows: RowRange = _PAGE) -> Op[SchedulePage]:
        """Return a page of the schedules whose name or queue matches, those due first at the top."""
        return work_pages.schedule_page(self._scope, rows)

    @verb
    def flows(self, rows: RowRange = _PAGE) -> Op[FlowPage]:
        """Return a page of the flows, without their tasks; running ones come first."""
        return work_pages.flow_page(self._scope, rows)

    @verb
    def flow(self, id: str) -> Op[FlowState]:
        """Return a flow with its tasks. Raises `NotFound`.

        The states of at most 100 tasks that may run are read; those of others are `unknown`.
        """
        return work_pages.flow(self._scope, self._policies, id)

    @verb
    def limits(self, rows: RowRange = _PAGE) -> Op[LimitPage]:
        """Return a page of the limits of queues, with the tasks that run and wait in each group."""
        return work_pages.limit_page(self._scope, rows)

    @verb
    def events(self) -> Op[EventOverview]:
        """Return the streams of events with the last reports about them, and the quarantine."""
        return self._events.get()

    @verb
    def release_consumer(self, consumer: str) -> Op[str]:
        """Take a consumer of events out of quarantine, and return its name. Raises `NotFound`."""
        return self._release(names.name("consumer", consumer))

    @verb
    def checks(self) -> Op[HealthChecks]:
        """Return every health check with its thresholds, value and findings."""
        return self._listed_checks()

    # -- operations --

    def _flag_states(self) -> Op[Sequence[FlagState]]:
        known = None if self._dashboard is None else self._dashboard.flag_states
        return known if known is not None else (yield from flags.states(self._scope))

    def _listed_checks(self) -> Op[HealthChecks]:
        found = None if self._dashboard is None else self._dashboard.health
        if found is None:
            found = yield from self._health.get()
        values = yield from self._values.get()
        return check_list.checks(found, self._thresholds, values)

    def _flag_page(self, rows: RowRange, state: str | None, leased: RowRange) -> Op[FlagPage]:
        waiting = yield from waiters.waiters(self._scope)
        states = with_awaited((yield from self._flags.get()), waiting)
        if rows.match is not None:
            text = rows.match.casefold()
            states = [one for one in states if _has(text, one.flag, one.agent_id)]
        counts = {each: sum(one.state == each for one in states) for each in _FLAG_STATES}
        chosen = [one for one in states if state in (None, one.state)]
        shown = [one.flag for one in _rows(rows, chosen)]
        fresh: list[FlagState] = []
        for at in range(0, len(shown), _AT_ONCE):
            _, page = yield from flags.look(self._scope, shown[at : at + _AT_ONCE])
            fresh += page
        awaited = {one.flag for one in waiting}
        known = yield from leases.leases(self._scope)
        if leased.match is not None:
            text = leased.match.casefold()
            known = [one for one in known if _has(text, one.path, one.agent, one.why)]
        return FlagPage(
            tuple(one for one in fresh if one.state != "free" or one.flag in awaited),
            len(chosen),
            counts,
            tuple(waiting),
            tuple(_rows(leased, known)),
            len(known),
            (yield from flags.holders_seen(self._scope, fresh)),
        )

    def _end_lease(self, agent: str, pattern: str, token: int) -> Op[Lease]:
        for one in (yield from leases.leases(self._scope)):
            if (one.agent, one.pattern, one.token) == (agent, pattern, token):
                for ended in (yield from leases.end_of(self._scope, agent, [one])):
                    return ended
        raise NotFound(
            f"{names.word(agent)} has no lease of {leases.shown(pattern)} with the token {token}",
            hint="it has ended, or was taken again",
        )

    def _release(self, consumer: str) -> Op[str]:
        for name in (yield from quarantine.lift(self._scope, [consumer])):
            return name
        raise NotFound(
            f"no consumer {names.word(consumer)} is in quarantine", hint="it was released before"
        )


def _rows(wanted: RowRange, found: Any) -> Any:
    return found[max(0, wanted.offset) :][: max(0, wanted.limit)]


def _has(text: str, *parts: str | None) -> bool:
    return any(text in part.casefold() for part in parts if part is not None)


def _one_of(what: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"the {what} is {value!a:.80}", hint=f"use one of {', '.join(known)}")
