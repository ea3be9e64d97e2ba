"""A shop under torture: its processes, the faults that hit them, and what came of the events."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

import agentbus
from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.events import Consumer, Relay, kill_points, register_consumer
from tests.torture.events import controls, producer, shop, worker
from tests.torture.events.checks import CHECKS, CommittedRow, EventsEvidence
from tests.torture.events.database import POSTGRESQL, SQLITE, Database, opened
from tests.torture.events.plan import (
    ACT,
    DATABASE,
    READS,
    READY,
    RELAY,
    SEND,
    STOPS,
    EventsPlan,
    planned,
)
from tests.torture.history import DIES, FAIL, INVOKE, OK, HistoryEntry, Scribe
from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, OUTAGES, Client, Fault, Nemesis, Steps, lasting
from tests.torture.server import DisposableServer
from tests.torture.verdict import Verdict
from tests.torture.workload import Workload, server_of

# The share of the events that goes with the faults; the rest is for faults that find no process at work.
_SHARE = 0.7
# How many faults may happen before the work that goes with them.
_AHEAD = 3
_LOOK = 0.3
# What wrong parts have not done after this time, in seconds, never will be.
_PATIENCE_WITH_CONTROLS = 10.0
# A consumer that is registered, and never acts.
_KEEPER = "keeper"
# The share of the faults that hit one that has worked, of the processes that are armed to kill themselves,
# and of the server's deaths in which it loses the end of its log.
_BUSY, _ARMED, _TRUNCATED = 0.8, 0.3, 0.4
_PARKED = "consumer.parked"  # Nothing is parked here.


def torture(trial: Trial) -> Iterator[Verdict]:
    """Torture each database once."""
    plan = planned(trial)
    # SQLite has one writer at a time, which commits in the order of the ids.
    late = {SQLITE: POSTGRESQL} if plan.late else {}
    for wanted in dict.fromkeys(late.get(each, each) for each in trial.databases):
        yield tortured(plan, trial, wanted)


def tortured(plan: EventsPlan, trial: Trial, wanted: str) -> Verdict:
    """Carry out a plan on one database; where something is wrong, its tables are kept, too."""
    place = trial.place / (wanted if wanted == SQLITE else POSTGRESQL)
    place.mkdir(parents=True, exist_ok=True)
    trial = trial._replace(place=place)
    with (
        opened(wanted, place, wal=trial.seed % 2 == 1) as database,
        server_of(trial, clock=trial.control is None) as server,
        Shop(plan, trial, database, server) as run,
    ):
        verdict = run.verdict()
        if verdict.violations:
            database.keep(place / "tables")
        return verdict


class Shop(Workload):
    """One run of a plan; the limit is how many events each producer may send.

    Mostly relays and consumers that work are hurt, and some are armed to kill themselves. Wrong parts are
    armed to hurt themselves at their worst moment, and nothing else happens to them.
    """

    mode, checks = "events", CHECKS

    def __init__(
        self, plan: EventsPlan, trial: Trial, database: Database, server: DisposableServer | None
    ) -> None:
        super().__init__(trial, server)
        self.plan, self.database = plan, database
        # Relays and consumers by the name of the process; others send events.
        self.roles = plan.roles()
        # The events sent, by producer and number, and the outcomes by their uuid.
        self.sent: set[tuple[str, int]] = set()
        self.outcomes: dict[str, str] = {}
        self.at_steps = self.overtaken = self.came_again = 0
        # The processes that have begun to work, and those that have done something.
        self._ready: set[str] = set()
        self._busy: set[str] = set()
        # No work is left, and any process can be hurt.
        self._exhausted = False
        # The wrong parts that have stopped themselves, and who acted last.
        self._stopped: list[str] = []
        self._acted = ""
        self._kept = False

    def evidence(self) -> EventsEvidence:
        """Send, act and suffer until all is done, then once more without faults."""
        sound = self.trial.control is None
        if sound:
            # A consumer that is registered later would not see what is removed before.
            self.go_through()
        nemesis = self.new_nemesis(self.plan.faults, self.plan.gap)
        upstreams = self.database.upstreams
        for name in self.roles:
            self.hire(name, self._part, [self._upstream, *upstreams])
        for number in range(self.plan.producers):
            self.hire(f"producer-{number}", self._producer, upstreams)
        # Faults before all work would show nothing.
        self.step("parts start", self._all_ready)
        self.step("events are sent", lambda: all(one.done for one in self._producers), nemesis)
        until = time.monotonic() + _PATIENCE_WITH_CONTROLS
        # SIGTERM ends a process that has not begun to work as it ends any program.
        self.step(
            "events are consumed",
            lambda: (
                self._all_ready() and (self._consumed() or (not sound and time.monotonic() > until))
            ),
        )
        self.stop([one for one in self.clients if one.name in self.roles])
        if sound:
            # All of it comes once more, on a server without any data, and changes nothing.
            with self.connect() as bus:
                bus.clear()
            self.go_through(self.plan.lease)
        return self._evidence()

    def _all_ready(self) -> bool:
        return self._ready >= self.roles.keys()

    def _part(self, client: Client) -> list[str]:
        role, control = self.roles[client.name], self.trial.control
        self._start_anew(client)
        wrong = control is not None and controls.is_wrong(control, role)
        module = worker if control is None or (role == RELAY and not wrong) else controls
        return self.assign(
            *(client, module.__name__, role),
            database=self._database(client),
            lease=self.plan.lease,
            dies=self._arm(role),
            control=control if wrong else None,
        )

    def _producer(self, client: Client) -> list[str]:
        plan, number = self.plan, int(client.name.rpartition("-")[2])
        self._start_anew(client)
        return self.assign(
            *(client, producer.__name__),
            database=self._database(client),
            streams=plan.streams,
            number=plan.events // plan.producers + (number < plan.events % plan.producers),
            late=plan.late,
        )

    def _database(self, client: Client) -> str:
        """Return the URL by which a process reaches the database, through its last proxy."""
        return self.database.through(client.proxies[-1] if self.database.upstreams else None)

    @property
    def _producers(self) -> list[Client]:
        return [one for one in self.clients if one.name not in self.roles]

    # -- while it runs --

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == READY:
            self._ready.add(entry.who)
        elif entry.op == DIES:
            self.at_steps += self.nemesis.happened(KILL)
        elif entry.op == STOPS:
            self._stopped.append(entry.who)
        else:
            self._busy.add(entry.who)
        if entry.op == ACT:
            self._acted = entry.who
        elif entry.op == SEND and entry.phase == INVOKE:
            self.sent.add((entry.who, entry.of["number"]))
        elif entry.op == SEND:
            self.outcomes[entry.of["uuid"]] = entry.phase

    def pace(self) -> None:
        nemesis = self.nemesis
        # The faults must not be far ahead of the work.
        if nemesis.done > _AHEAD + nemesis.total * len(self.sent) / (_SHARE * self.plan.events):
            nemesis.wait()
        share = _SHARE * (nemesis.done + 1) / (nemesis.total + 1)
        if nemesis.done == nemesis.total:
            share = 1.0
        each = self.plan.events // self.plan.producers + 1
        number = min(max(self.limit[0], int(share * each) + nemesis.hunger // 2), each)
        self._exhausted = number == each
        self.allow(number)
        if not self._kept and nemesis.done * 2 > nemesis.total and self.trial.control is None:
            self._keep()

    def _keep(self) -> None:
        """Let nothing be removed from now on, so that it can come once more in the end."""
        if any(one.frozen for one in self.clients):
            # It may hold SQLite's lock until the nemesis lets it go on.
            return
        with contextlib.suppress(BackendUnavailable):
            for stream in self.plan.streams:
                register_consumer(self.database.ledger, stream, _KEEPER)
            self._kept = True

    def _consumed(self) -> bool:
        """Tell whether every consumer has done all."""
        ask = self.database.ask
        sent = dict(ask(_counts(shop.COMMITTED.c.stream)))
        done = dict(ask(_counts(shop.EFFECTS.c.consumer, shop.EFFECTS.c.uuid)))
        return all(done.get(name, 0) >= sent.get(READS[name], 0) for name in self.plan.reads)

    # -- how it ends --

    def go_through(self, patience: float = 0.0) -> None:
        """Relay and consume once, in this process; wait up to `patience` for leases to expire."""
        ledger, lease = self.database.ledger, self.plan.lease
        scribe = Scribe(self.histories / "torture")
        # Connections from before a restart of the database are of no use any more.
        ledger.engine.dispose()
        try:
            with agentbus.connect(self.url, project=self.project, agent="torture") as bus:
                with contextlib.closing(Relay(ledger, bus, lease=lease)) as relay:
                    until = time.monotonic() + patience
                    while relay.run_once() or time.monotonic() < until:
                        time.sleep(_LOOK)
                for name in self.plan.reads:
                    found = shop.consumers(scribe)[name]
                    with contextlib.closing(Consumer(found, ledger, bus, lease=lease)) as one:
                        one.run_once()
                        self.came_again += one.counts["duplicates"]
        except AgentBusError as error:
            self.ended.append(f"to go through it once more fails: {error}")

    def _evidence(self) -> EventsEvidence:
        ask, tables, effect = self.database.ask, self.database.ledger.tables, shop.EFFECTS
        effects: dict[str, list[str]] = {name: [] for name in self.plan.reads}
        for name, uuid in ask(sa.select(effect.c.consumer, effect.c.uuid).order_by(effect.c.id)):
            effects[name].append(uuid)
        waiting = sa.select(tables.outbox.c.event_uuid).where(tables.outbox.c.position_ms.is_(None))
        self.problems |= {
            "parked": [row[0] for row in ask(sa.select(tables.parked.c.event_uuid))],
            "stuck": [row[0] for row in ask(waiting)] if self.trial.control is None else [],
            "confused": [x for one in self.clients for x in _tracebacks(self.errors / one.name)],
        }
        return EventsEvidence(
            {name: READS[name] for name in self.plan.reads},
            [CommittedRow(*row) for row in ask(sa.select(shop.COMMITTED))],
            effects,
            {uuid for uuid, phase in self.outcomes.items() if phase == OK},
            {uuid for uuid, phase in self.outcomes.items() if phase == FAIL},
        )

    def figures(self, evidence: EventsEvidence) -> dict[str, Any]:
        return {
            "database": self.database.name,
            "events": len(self.sent),
            "rolled_back": len(evidence.taken_back),
            "committed": len(evidence.committed),
            "effects": sum(len(done) for done in evidence.effects.values()),
            "consumers": len(evidence.reads),
            "processes": len(self.clients) + self.deaths,
            "came_again": self.came_again,
            "killed_at_steps": self.at_steps,
            "lost_tails": self.nemesis.truncated,
            "overtaken": self.overtaken,
        }

    # -- faults --

    def new_nemesis(self, wanted: Mapping[str, int], gap: float) -> Nemesis:
        if self.database.server is None:
            wanted = {kind: number for kind, number in wanted.items() if kind != DATABASE}
        found = super().new_nemesis(wanted, gap)
        found.loses_tail = _TRUNCATED
        return found

    def own_faults(self) -> Mapping[str, Fault]:
        if self.trial.control is not None:
            return {KILL: lambda: False, FREEZE: self._overtake}
        return {FREEZE: self._freeze, DATABASE: self._restart_database}

    def _start_anew(self, client: Client) -> None:
        """Take a process for new."""
        self._ready.discard(client.name)
        self._busy.discard(client.name)

    def fit(self, client: Client) -> bool:
        """Hurt mostly those that have worked, and sometimes one that waits to take over."""
        return client.name in self._ready and (
            self._works(client) or self.nemesis.chance.random() > _BUSY
        )

    def _works(self, client: Client) -> bool:
        return self._exhausted or client.name in self._busy

    def _arm(self, role: str) -> str | None:
        """Return what the next process in a role is to do to itself, or None."""
        nemesis, control = self.nemesis, self.trial.control
        if control is not None:
            found = [kind for kind in (KILL, FREEZE) if kind in nemesis.wanted]
            return (
                found[0]
                if controls.is_wrong(control, role) and nemesis.done == 0 and found
                else None
            )
        if not nemesis.left(KILL) or nemesis.chance.random() >= _ARMED:
            return None
        steps = kill_points.RELAY if role == RELAY else kill_points.CONSUMER
        step = nemesis.chance.choice([each for each in steps if each != _PARKED])
        return f"{step}:{1 if step.endswith('leased') else nemesis.chance.randint(1, 3)}"

    def _freeze(self) -> Steps:
        """Stop one that may have a lease for longer than the lease lasts."""
        nemesis = self.nemesis
        found = [x for x in nemesis.victims() if x.name in self.roles and self._works(x)]
        one = nemesis.one_of(found)
        if one is not None:
            role = self.roles[one.name]
            before = self.database.tokens(role)
            # Processes that wait to take over look once a second.
            seconds = self.plan.lease * nemesis.chance.uniform(1.1, 1.6) + 1.0
            yield from nemesis.freeze(one, seconds)
            self.overtaken += self.database.tokens(role) > before

    def _restart_database(self) -> Steps:
        """Stop PostgreSQL, half the time as in a crash, and start it a little later."""
        server, chance = self.database.server, self.nemesis.chance
        if server is not None and server.runs:
            server.stop(crash=chance.random() < 0.5)
            yield from lasting(chance.choice(OUTAGES), server.start)

    def _overtake(self) -> Steps:
        """Let a wrong part that has stopped itself go on when another one has acted."""
        while not self._stopped:
            yield False
        first = self._acted = self._stopped.pop()
        go_on = self._hold(first)
        try:
            while self._acted == first:
                while self._stopped:
                    self._hold(self._stopped.pop())()
                yield False
            yield True
        finally:
            go_on()

    def _hold(self, name: str) -> Callable[[], None]:
        """Keep a process stopped that stops itself; returns what lets it go on."""
        client = self.client(name)
        assert client.process is not None
        # It writes this before it stops, and must not be let go before.
        os.waitid(os.P_PID, client.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return client.freeze()


def _tracebacks(path: pathlib.Path) -> list[str]:
    said = path.read_text(errors="replace")
    return [said[max(0, said.find("Traceback") - 300) :]] if "Traceback" in said else []


def _counts(by: Any, of: Any = None) -> Any:
    counted = sa.func.count() if of is None else sa.func.count(sa.distinct(of))
    return sa.select(by, counted).group_by(by)
