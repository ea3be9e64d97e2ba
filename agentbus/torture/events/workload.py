"""A shop under torture: its database, its server, and the processes that send, relay and consume."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

import agentbus
from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.events import Consumer, Relay, register_consumer
from agentbus.torture.events import controls, producer, shop, worker
from agentbus.torture.events.checks import CHECKS, CommittedRow, EventsEvidence
from agentbus.torture.events.database import POSTGRESQL, SQLITE, Database, opened
from agentbus.torture.events.faults import HurtShop
from agentbus.torture.events.plan import READS, RELAY, SEND, EventsPlan, planned
from agentbus.torture.history import FAIL, INVOKE, OK, HistoryEntry, Scribe
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import Client
from agentbus.torture.server import DisposableServer
from agentbus.torture.verdict import Verdict
from agentbus.torture.workload import server_of

# The share of the events that goes with the faults; the rest is for faults that find no process at work.
_SHARE = 0.7
# How many faults may happen before the work that goes with them.
_AHEAD = 3
_LOOK = 0.3
# Without progress for this long, in seconds, what is not done never will be.
_PATIENCE, _PATIENCE_WITH_CONTROLS = 60.0, 8.0
# A consumer that is registered, and never acts.
_KEEPER = "keeper"
_STOPS_WITHIN = 60.0


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
        server_of(trial, clock=plan.control is None) as server,
        Shop(plan, trial, database, server) as run,
    ):
        verdict = run.verdict()
        if verdict.violations:
            database.keep(place / "tables")
        return verdict


class Shop(HurtShop):
    """One run of a plan; the limit is how many events each producer may send."""

    checks = CHECKS

    def __init__(
        self, plan: EventsPlan, trial: Trial, database: Database, server: DisposableServer | None
    ) -> None:
        super().__init__(plan, trial, database, server)
        # The events sent, by producer and number, and the outcomes by their uuid.
        self.sent: set[tuple[str, int]] = set()
        self.outcomes: dict[str, str] = {}
        self.came_again = 0
        self._kept = False

    def evidence(self) -> EventsEvidence:
        """Send, act and suffer until all is settled, nothing moves any more, or the time is up."""
        if self.plan.control is None:
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
        self.step("events are consumed", self._settled())
        self._stop()
        return self._evidence()

    def _all_ready(self) -> bool:
        return self.ready >= self.roles.keys()

    def _part(self, client: Client) -> list[str]:
        role, control = self.roles[client.name], self.plan.control
        self.start_anew(client)
        proxies = client.proxies
        wrong = control is not None and controls.is_wrong(control, role)
        module = worker if control is None or (role == RELAY and not wrong) else controls
        return self.assign(
            *(client, module.__name__, role),
            database=self.database.through(proxies[1] if len(proxies) > 1 else None),
            lease=self.plan.lease,
            dies=self.arm(role),
            control=control if wrong else None,
        )

    def _producer(self, client: Client) -> list[str]:
        plan, number = self.plan, int(client.name.rpartition("-")[2])
        self.start_anew(client)
        return self.assign(
            *(client, producer.__name__),
            database=self.database.through(client.proxies[0] if client.proxies else None),
            streams=plan.streams,
            number=plan.events // plan.producers + (number < plan.events % plan.producers),
            rolled_back=plan.rolled_back,
            late=plan.late,
        )

    @property
    def _producers(self) -> list[Client]:
        return [one for one in self.clients if one.name not in self.roles]

    # -- while it runs --

    def saw(self, entry: HistoryEntry) -> None:
        super().saw(entry)
        if entry.op == SEND and entry.phase == INVOKE:
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
        self.exhausted = number == each
        self.allow(number)
        if not self._kept and nemesis.done * 2 > nemesis.total and self.plan.control is None:
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

    def _settled(self) -> Callable[[], bool]:
        """Return what tells whether every consumer has done all, or nothing moves any more."""
        patience = _PATIENCE if self.plan.control is None else _PATIENCE_WITH_CONTROLS
        by_stream = dict(self.database.ask(_counts(shop.COMMITTED.c.stream)))
        wanted = {name: by_stream.get(READS[name], 0) for name in self.plan.reads}
        last, until = -1, time.monotonic() + patience

        def over() -> bool:
            nonlocal last, until
            now = time.monotonic()
            done = dict(self.database.ask(_counts(shop.EFFECTS.c.consumer, shop.EFFECTS.c.uuid)))
            if all(done.get(name, 0) >= number for name, number in wanted.items()):
                return True
            if sum(done.values()) != last or not self._all_ready():
                last, until = sum(done.values()), now + patience
            return now > until

        return over

    # -- how it ends --

    def _stop(self) -> None:
        parts = [one for one in self.clients if one.name in self.roles]
        for one in parts:
            one.send(signal.SIGTERM)
        for one in parts:
            assert one.process is not None
            try:
                code = one.process.wait(_STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                self.ended.append(f"{one.name} did not stop on SIGTERM")
                continue
            self.read(self.saw)
            early = code == -signal.SIGTERM and one.name not in self.ready
            if code and not (early or one.killed):
                self.ended.append(f"{one.name} ended with {code} on SIGTERM")
        if self.plan.control is None:
            self._forget()
            # All of it comes once more, on a server without any data, and changes nothing.
            self.go_through(self.plan.lease)

    def _forget(self) -> None:
        """Delete all that the server knows of this run."""
        if self.server is not None:
            self.server.ask("FLUSHALL")
            return
        with self.connect() as bus:
            bus.clear()

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
            "stuck": [row[0] for row in ask(waiting)] if self.plan.control is None else [],
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


def _tracebacks(path: pathlib.Path) -> list[str]:
    said = path.read_text(errors="replace")
    return [said[max(0, said.find("Traceback") - 300) :]] if "Traceback" in said else []


def _counts(by: Any, of: Any = None) -> Any:
    counted = sa.func.count() if of is None else sa.func.count(sa.distinct(of))
    return sa.select(by, counted).group_by(by)
