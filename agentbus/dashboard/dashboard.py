"""A dashboard reads successive snapshots of a project at little cost."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from agentbus.admin import health, project, stats
from agentbus.admin.health import events, thresholds, worker_list
from agentbus.coordination import waiters
from agentbus.core.errors import NotFound
from agentbus.core.keys import pause_field
from agentbus.dashboard.event_list import EventList
from agentbus.dashboard.figures import QueueDetail, QueueRow, RowRange, Snapshot, Totals
from agentbus.dashboard.flag_list import FlagList, with_awaited
from agentbus.dashboard.lease_list import LeaseList
from agentbus.dashboard.parts import Part
from agentbus.dashboard.presence_list import PresenceList
from agentbus.dashboard.queue_names import QueueNames
from agentbus.dashboard.ranking import GroupSummary, Ranking
from agentbus.dashboard.streams import ChannelTail, MetricsTail, channel_end, channel_past
from agentbus.dashboard.surveys import Surveys
from agentbus.dashboard.task_verbs import TaskVerbs
from agentbus.store.scope import server_time
from agentbus.store.verb import BusT_co, verb
from agentbus.workers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from agentbus.admin.health import Health
    from agentbus.admin.health.worker_list import WorkerList
    from agentbus.admin.stats import QueueStats
    from agentbus.admin.survey import Group
    from agentbus.coordination.flags import FlagState
    from agentbus.coordination.message import Message
    from agentbus.coordination.presence import Presence
    from agentbus.dashboard.ranking import QueueSummary
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    T = TypeVar("T")

_ALL = RowRange()
_MESSAGES = 500
# Seconds between two readings for each queue that was ranked, or examined for the verdict, and for
# each worker: a view that reads once a second ranks a thousand queues with each snapshot.
_QUEUE, _EXAMINED, _WORKER = 0.0008, 0.03, 0.002


class Dashboard(TaskVerbs[BusT_co]):
    """Reads snapshots of the project of a `Bus` or an `AsyncBus`; one reader at a time.

    It remembers the ends of the channel and the metrics stream at the last snapshot, so that the
    next snapshot reads only new entries. Lists that take long to read are read less often.
    """

    def __init__(self, bus: Any) -> None:
        if bus._sharded is not None:
            bus._sharded.whole(bus, "a dashboard")
        self._bus = bus
        self._scope: Scope = bus.scope
        self._run, self._iterate = bus._run, bus._iterate
        self._policies = bus.runner.policies
        self._thresholds = thresholds.read(bus.settings)
        scope, monotonic = self._scope, self._scope.monotonic
        self._channel, self._metrics = ChannelTail(scope), MetricsTail(scope)
        self._flags, self._leases = FlagList(scope), LeaseList(scope)
        self._queue_names, self._agents = QueueNames(scope), PresenceList(scope)
        self._names, self._events = self._queue_names.all, EventList(scope)
        self._ranking = Ranking(scope, self._policies.letters_of, self._thresholds)
        self._surveys = Surveys(scope)
        self._workers = Part(
            *(monotonic, lambda: worker_list.listed(scope)),
            seconds=lambda found: _WORKER * len(found.workers),
        )
        self._ranks = Part(monotonic, self._ranked, seconds=lambda found: _QUEUE * len(found))
        self._health = Part(
            *(monotonic, lambda: health.examine(scope, bus.settings)),
            seconds=lambda found: _EXAMINED * found.queues,
        )
        self._parts: tuple[Part[Any], ...] = (
            *(self._names, self._workers, self._ranks, self._events.all, self._flags.names),
        )
        # The lists of the last snapshot, for pages that show other rows of the same lists.
        self.present: Sequence[Presence] | None = None
        self.flag_states: Sequence[FlagState] | None = None
        self.health: Health | None = None
        # Parts that may be older than the snapshot; parts that follow a stream are current.
        self._aged = (self._workers, self._ranking.summaries, self._agents)

    @verb
    def snapshot(
        self,
        *,
        queues: RowRange = _ALL,
        agents: RowRange = _ALL,
        flags: RowRange = _ALL,
        leases: RowRange = _ALL,
        messages: int = _MESSAGES,
    ) -> Op[Snapshot]:
        """Return the project's figures, and the requested rows of each list.

        The first snapshot has the newest `messages` of the channel, each later one at most the
        newest `messages` of those spoken since. Cursors do not move. Each script is atomic and
        takes a few milliseconds of server time; the snapshot as a whole is not atomic. Raises
        `ConfigError`.
        """
        return self._snapshot(queues, agents, flags, leases, messages)

    @verb
    def queue(self, name: str) -> Op[QueueDetail]:
        """Return the groups, consumers and workers of one queue, with its rates. Raises `NotFound`."""
        return self._queue(name)

    def forget(self) -> None:
        """Make the next snapshot read every list again, after an action that changed them."""
        for part in (*self._parts, self._health):
            part.forget()

    @verb
    def queues(self, rows: RowRange = _ALL) -> Op[tuple[tuple[QueueRow, ...], int]]:
        """Return rows of queues, one per group, ordered by trouble, and the number of matches."""
        return self._queues(rows)

    @verb
    def talk(
        self, after: str, *, limit: int = 100, wait: float = 0.0
    ) -> Op[tuple[list[Message], int]]:
        """Return the newest messages after an id, oldest first, and how many more there are.

        It reads at most 1,000 messages, and waits up to `wait` seconds for the first. Cursors do
        not move.
        """
        return channel_past(self._scope, after, limit, wait)

    @verb
    def talk_end(self) -> Op[str]:
        """Return the id of the newest message of the channel, or `0-0`."""
        return channel_end(self._scope)

    def _queues(self, wanted: RowRange) -> Op[tuple[tuple[QueueRow, ...], int]]:
        now = yield from server_time(self._scope)
        yield from self._metrics.read(now)
        return (yield from self._rows(wanted, (yield from self._ranks.get()), now))

    def _snapshot(
        self,
        queues: RowRange,
        agents: RowRange,
        flags: RowRange,
        leases_of: RowRange,
        messages: int,
    ) -> Op[Snapshot]:
        scope = self._scope
        began, now = scope.monotonic(), (yield from server_time(scope))
        spoken, missed = yield from self._channel.read(messages)
        yield from self._metrics.read(now)
        found = yield from self._ranks.get()
        rows, of_queues = yield from self._rows(queues, found, now)
        known = yield from project.known(scope)
        present = yield from self._agents.read(now, known)
        here, of_agents = _part(agents, present, lambda one: one.agent)
        here = yield from self._agents.read_again(here)
        states = yield from self._flags.read(spoken, missed)
        waiting = yield from waiters.waiters(scope)
        leased = yield from self._leases.read(now)
        held, of_leases = _part(leases_of, leased, lambda one: f"{one.path}\n{one.agent}")
        shown, of_flags = _part(flags, with_awaited(states, waiting), lambda one: one.flag)
        reports = yield from self._events.read()
        quarantined = tuple((yield from events.quarantined(scope)))
        working: WorkerList = yield from self._workers.get()
        status = yield from self._health.get()
        groups = [group for one in found for group in one.groups]
        totals = Totals(
            len(found),
            sum(one.backlog for one in groups),
            sum(one.held for one in groups),
            sum(one.delayed for one in found),
            sum(one.blocked for one in found),
            self._dead(found),
            self._metrics.rate,
            working.number,
            working.dead,
            len(present),
            known,
            self._agents.unread(present),
            sum(one.state == "held" for one in states),
            len(waiting),
            len(leased),
            len({one.stream for one in reports}),
            len(quarantined),
        )
        self.present, self.flag_states, self.health = present, states, status
        self._channel.shown()
        return Snapshot(
            project=scope.keys.project,
            at=now,
            took=scope.monotonic() - began,
            totals=totals,
            matching={
                "queues": of_queues,
                "agents": of_agents,
                "flags": of_flags,
                "leases": of_leases,
                "waiters": len(waiting),
            },
            queues=rows,
            agents=tuple(here),
            flags=tuple(shown),
            waiters=tuple(waiting),
            leases=tuple(held),
            messages=tuple(spoken),
            missed=missed,
            events=reports,
            quarantined=quarantined,
            halted=working.reason(pause_field("project")),
            health=status,
            health_age=self._health.age,
            oldest_part=max(part.age for part in self._aged),
        )

    def _dead(self, found: Sequence[QueueSummary]) -> int:
        """Return the number of dead letters, counting letters that queues share once."""
        letters_of = self._policies.letters_of
        return sum(
            {
                (letters_of(one.queue), group.group): group.dead
                for one in found
                for group in one.groups
                if group.dead
            }.values()
        )

    def _ranked(self) -> Op[list[QueueSummary]]:
        known = yield from self._queue_names.read()
        working = yield from self._workers.get()
        return (yield from self._ranking.read(known, working))

    def _rows(
        self, wanted: RowRange, ranked: Sequence[QueueSummary], now: float
    ) -> Op[tuple[tuple[QueueRow, ...], int]]:
        chosen, before, matching = _queues_of(wanted, ranked)
        if not chosen:
            return (), matching
        among = {one.queue for one in chosen}
        working: WorkerList = yield from self._workers.get()
        surveys = yield from self._surveys.read(chosen, now, reuse=self._ranking.summaries.many)
        found = yield from stats.stats(
            self._scope,
            surveys=surveys,
            letters_of=self._policies.letters_of,
            samples=lambda begins: self._metrics.since(begins, among),
            workers=working.workers,
        )
        shown = found[before:][: max(0, wanted.limit)]
        return tuple(self._row(one, working, now) for one in shown), matching

    def _row(self, one: QueueStats, working: WorkerList, now: float) -> QueueRow:
        held = one.pending + one.retrying
        since = None if one.oldest is None else now - one.oldest
        about = GroupSummary(one.group, one.backlog, since, held, one.dead)
        dead = sum(not worker.alive for worker in working.of(one.queue, one.group))
        # A held task is due if its holder is dead; a task that an agent took by hand needs no
        # heartbeat.
        due = one.backlog or one.retrying or (dead and one.pending)
        served = one.consumers or working.alive(one.queue, one.group)
        return QueueRow(
            one,
            self._ranking.trouble(one.queue, about, bool(due and not served), now),
            working.paused(one.queue),
            dead,
            self._metrics.points(one.queue, one.group, now),
        )

    def _queue(self, name: str) -> Op[QueueDetail]:
        scope, now = self._scope, (yield from server_time(self._scope))
        yield from self._metrics.read(now)
        letters = self._policies.letters_of
        groups: Sequence[Group] = ()
        with suppress(NotFound):
            # A queue whose tasks are all delayed or blocked has no groups yet.
            groups = yield from stats.groups(scope, name, letters_of=letters(name))
        workers = [one for one in (yield from registry.workers(scope)) if one.queue == name]
        found = yield from stats.stats(scope, name, letters_of=letters, workers=workers)
        working = yield from self._workers.get()
        rows = tuple(self._row(one, working, now) for one in found)
        return QueueDetail(name, rows, tuple(groups), tuple(workers))


_ORDERS: dict[str, Callable[[QueueSummary], Any]] = {
    "name": lambda one: one.queue,
    "backlog": lambda one: sum(group.backlog for group in one.groups),
    # The oldest task is the one that was published first.
    "oldest": lambda one: -min((group.oldest or inf for group in one.groups), default=inf),
    "delayed": lambda one: one.delayed,
    "dead": lambda one: one.dead,
}


def _queues_of(
    wanted: RowRange, ranked: Sequence[QueueSummary]
) -> tuple[list[QueueSummary], int, int]:
    """Return the queues of the requested rows, the rows before them, and the number of matches.

    A queue has a row for each group.
    """
    every = RowRange(wanted.match, limit=len(ranked))
    chosen: list[QueueSummary] = []
    first, before, at = max(0, wanted.offset), 0, 0
    for one in _part(every, wanted.sorted(ranked, _ORDERS), lambda one: one.queue)[0]:
        behind = at + max(1, len(one.groups))
        if at < first + wanted.limit and behind > first:
            before = before if chosen else first - at
            chosen.append(one)
        at = behind
    return chosen, before, at


def _part(
    wanted: RowRange, found: Sequence[T], named: Callable[[T], str]
) -> tuple[Sequence[T], int]:
    """Return the requested rows, and the number of matches."""
    if wanted.match is not None:
        text = wanted.match.casefold()
        found = [one for one in found if text in named(one).casefold()]
    return found[max(0, wanted.offset) :][: max(0, wanted.limit)], len(found)
