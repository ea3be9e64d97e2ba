"""A dashboard reads snapshots of a project, one after the other, each at little cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.admin import health, project, stats
from agentbus.admin.health import events, thresholds, worker_list
from agentbus.admin.metrics_reader import server_time
from agentbus.coordination import leases, presence, waiters
from agentbus.core.keys import pause_field
from agentbus.dashboard import ranking
from agentbus.dashboard.figures import (
    EventReport,
    QueueDetail,
    QueueRow,
    RowRange,
    Snapshot,
    Totals,
)
from agentbus.dashboard.flag_list import FlagList
from agentbus.dashboard.parts import Part
from agentbus.dashboard.streams import ChannelTail, MetricsTail, channel_end, channel_past
from agentbus.dashboard.task_verbs import TaskVerbs
from agentbus.store.verb import BusT_co, verb
from agentbus.workers import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from agentbus.admin.health.worker_list import WorkerList
    from agentbus.admin.stats import QueueStats
    from agentbus.coordination.message import Message
    from agentbus.coordination.presence import Presence
    from agentbus.dashboard.ranking import QueueSummary
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    T = TypeVar("T")

_ALL = RowRange()
_MESSAGES = 500
# The ranks of a thousand queues are read every second.
_OFTEN = 8.0
# Of agents, those seen last are read with every snapshot.
_FRESH = 100


class Dashboard(TaskVerbs[BusT_co]):
    """Reads snapshots of the project of a `Bus` or an `AsyncBus`; one reader at a time.

    It remembers where the channel and the metrics stream ended at the last snapshot, so that the next one
    reads what came since. Lists whose reading takes long are read less often.
    """

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._scope: Scope = bus.scope
        self._run, self._iterate = bus._run, bus._iterate
        self._policies = bus.runner.policies
        self._thresholds = thresholds.read(bus.settings)
        scope, monotonic = self._scope, self._scope.monotonic
        self._channel, self._metrics = ChannelTail(scope), MetricsTail(scope)
        self._flags = FlagList(scope)
        self._names = Part(monotonic, lambda: stats.known_queues(scope))
        self._workers = Part(monotonic, lambda: worker_list.listed(scope))
        self._ranks = Part(monotonic, self._summed_up, _OFTEN)
        self._agents = Part(monotonic, lambda: presence.present(scope, limit=None))
        self._health = Part(monotonic, lambda: health.examine(scope, bus.settings))
        self._events = Part(monotonic, lambda: _events(scope))
        self._parts: tuple[Part[Any], ...] = (
            *(self._names, self._workers, self._ranks, self._agents, self._events),
            self._flags.names,
        )

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
        """Return the project's figures, and of each list the rows that are asked for.

        The first snapshot has the newest `messages` of the channel, each later one those that came since,
        at most the newest `messages` of them. No cursor moves. Each script is atomic and takes a few
        milliseconds of the server; the whole is not atomic. Raises `ConfigError`.
        """
        return self._snapshot(queues, agents, flags, leases, messages)

    @verb
    def queue(self, name: str) -> Op[QueueDetail]:
        """Return the groups, consumers and workers of one queue, with its rates. Raises `NotFound`."""
        return self._queue(name)

    def forget(self) -> None:
        """Read every list again for the next snapshot, after an action that has changed them."""
        for part in (*self._parts, self._health):
            part.forget()

    @verb
    def queues(self, rows: RowRange = _ALL) -> Op[tuple[tuple[QueueRow, ...], int]]:
        """Return rows of queues, ordered by trouble, and how many queues match."""
        return self._queues(rows)

    @verb
    def talk(
        self, after: str, *, limit: int = 100, wait: float = 0.0
    ) -> Op[tuple[list[Message], int]]:
        """Return the newest messages of the channel past an id, oldest first, and how many it leaves out.

        At most 1,000 messages are looked at. Waits up to `wait` seconds for one. No cursor moves.
        """
        return channel_past(self._scope, after, limit, wait)

    @verb
    def talk_end(self) -> Op[str]:
        """Return the id of the newest message of the channel; without one `0-0`."""
        return channel_end(self._scope)

    def _queues(self, wanted: RowRange) -> Op[tuple[tuple[QueueRow, ...], int]]:
        now = yield from server_time(self._scope)
        yield from self._metrics.read(now)
        chosen, matching = _part(wanted, (yield from self._ranks.get()), lambda one: one.queue)
        return (yield from self._rows(chosen, now)), matching

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
        chosen, of_queues = _part(queues, found, lambda one: one.queue)
        rows = yield from self._rows(chosen, now)
        here, of_agents = yield from self._present(agents)
        states = yield from self._flags.read(spoken)
        waiting = yield from waiters.waiters(scope)
        leased = yield from leases.leases(scope)
        held, of_leases = _part(leases_of, leased, lambda one: f"{one.pattern}\n{one.agent}")
        shown, of_flags = _part(flags, states, lambda one: one.flag)
        reports, quarantined = yield from self._events.get()
        working: WorkerList = yield from self._workers.get()
        status = yield from self._health.get()
        present = yield from self._agents.get()
        groups = [group for one in found for group in one.groups]
        totals = Totals(
            len(found),
            sum(one.backlog for one in groups),
            sum(one.held for one in groups),
            sum(one.delayed for one in found),
            sum(one.dependent for one in found),
            sum(one.dead for one in groups),
            self._metrics.rate(now),
            working.number,
            working.dead,
            len(present),
            (yield from project.known(scope)),
            sum(one.unread for one in present),
            sum(one.state == "held" for one in states),
            len(waiting),
            len(leased),
            len({one.stream for one in reports}),
            len(quarantined),
        )
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
            agents=here,
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
            oldest_part=max(part.age for part in self._parts),
        )

    def _summed_up(self) -> Op[list[QueueSummary]]:
        known, _ = yield from self._names.get()
        working = yield from self._workers.get()
        _, found = yield from ranking.summaries(self._scope, known, self._policies.letters_of)
        return ranking.ranked(found, self._thresholds, working)

    def _rows(self, chosen: Sequence[QueueSummary], now: float) -> Op[tuple[QueueRow, ...]]:
        if not chosen:
            return ()
        names = [one.queue for one in chosen]
        among = set(names)
        working: WorkerList = yield from self._workers.get()
        found = yield from stats.stats(
            self._scope,
            among=names,
            letters_of=self._policies.letters_of,
            samples=lambda begins: self._metrics.since(begins, among),
            workers=working.workers,
        )
        return tuple(self._row(one, working, now) for one in found)

    def _row(self, one: QueueStats, working: WorkerList, now: float) -> QueueRow:
        held = one.pending + one.retrying
        about = ranking.GroupSummary(one.group, one.backlog, one.oldest, held, one.dead)
        return QueueRow(
            one,
            ranking.trouble(one.queue, about, self._thresholds, working),
            working.paused(one.queue),
            sum(not worker.alive for worker in working.of(one.queue, one.group)),
            self._metrics.points(one.queue, one.group, now),
        )

    def _present(self, wanted: RowRange) -> Op[tuple[tuple[Presence, ...], int]]:
        everybody = yield from self._agents.get()
        if wanted.match is None and wanted.offset + wanted.limit <= _FRESH:
            fresh = yield from presence.present(self._scope, limit=wanted.offset + wanted.limit)
            return tuple(fresh[wanted.offset :]), max(len(fresh), len(everybody))
        found, matching = _part(wanted, everybody, lambda one: one.agent)
        return tuple(found), matching

    def _queue(self, name: str) -> Op[QueueDetail]:
        scope, now = self._scope, (yield from server_time(self._scope))
        yield from self._metrics.read(now)
        letters = self._policies.letters_of
        groups = yield from stats.groups(scope, name, letters_of=letters(name))
        workers = [one for one in (yield from registry.workers(scope)) if one.queue == name]
        found = yield from stats.stats(scope, name, letters_of=letters, workers=workers)
        working = yield from self._workers.get()
        rows = tuple(self._row(one, working, now) for one in found)
        return QueueDetail(name, rows, tuple(groups), tuple(workers))


def _part(
    wanted: RowRange, found: Sequence[T], named: Callable[[T], str]
) -> tuple[Sequence[T], int]:
    """Return the rows that are wanted, and how many match."""
    if wanted.match is not None:
        text = wanted.match.casefold()
        found = [one for one in found if text in named(one).casefold()]
    return found[max(0, wanted.offset) :][: max(0, wanted.limit)], len(found)


def _events(scope: Scope) -> Op[tuple[tuple[EventReport, ...], tuple[str, ...]]]:
    """Return the reports of relays and consumers, and the consumers in quarantine."""
    now, reports = yield from events.reports(scope)
    found = tuple(
        EventReport(one.stream, one.role, max(0.0, now - one.at), one.lag_events, one.lag_ms)
        for one in reports
    )
    return found, tuple((yield from events.quarantined(scope)))
