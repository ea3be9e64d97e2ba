"""Runs a shop under torture: its database, its server, and all who send, relay and consume."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

import agentbus
from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.events import Consumer, Relay, register_consumer
from agentbus.torture import nemesis
from agentbus.torture.events import naive, producer, shop, worker
from agentbus.torture.events.database import POSTGRESQL, SQLITE, Database, opened
from agentbus.torture.events.judging import Row, Story, violations
from agentbus.torture.events.nemesis import Nemesis, Places, Worst
from agentbus.torture.events.plan import DATABASE, READS, READY, RELAY, SEND, Plan, planned
from agentbus.torture.history import FAIL, INVOKE, OK, Entry, Scribe
from agentbus.torture.nemesis import Client
from agentbus.torture.network import Proxy
from agentbus.torture.order import Order
from agentbus.torture.server import Server
from agentbus.torture.site import Site, upstream_of
from agentbus.torture.verdict import Verdict

# Of the events that go with the faults; the rest is for those that find nobody at work.
_SHARE = 0.7
_LOOK = 0.3
# How many faults may be done before the work that goes with them.
_AHEAD = 3
# Without any progress for so long, in seconds, what is not done never will be.
_PATIENCE, _PATIENCE_WITH_CONTROLS = 60.0, 8.0
_TELLS_EVERY = 10.0
# A consumer that is known, and never acts.
_KEEPER = "keeper"
_STOPS_WITHIN = 60.0


class Shop(Site):
    """One run of a plan."""

    def __init__(self, plan: Plan, order: Order, database: Database, server: Server | None) -> None:
        super().__init__(order.place / database.name, upstream_of(server, order.url))
        self.plan, self.order, self.database, self.server = plan, order, database, server
        self.project = order.project
        # Who sent which number, and how each that has an outcome came out, by its uuid.
        self.sent: set[tuple[str, int]] = set()
        self.outcomes: dict[str, str] = {}
        self.came_again = 0
        self.wanted = nemesis.possible(plan.faults, server)
        if database.server is None:
            self.wanted.pop(DATABASE, None)
        self._roles: dict[str, str] = {}
        self._armed: set[str] = set()
        # Who works already: whoever is told to stop before that ends as any program does.
        self._ready: set[str] = set()
        self._allowed = self._told = 0
        self._kept = False
        self._next_tale = 0.0
        self.nemesis = self._nemesis()
        self.nemesis.every_tick = self._allow

    def _nemesis(self) -> Nemesis | Worst:
        plan, control = self.plan, self.plan.control
        if control is not None:
            return Worst(self.wanted, self.clients, lambda role: naive.wrong(control, role))
        places = Places(
            self.server, self.database.server, self.database.tokens, plan.lease, self._ready
        )
        seed = self.order.seed
        made = Nemesis(self.wanted, plan.gap, seed, self.clients, places, self._roles)
        made.allowed = lambda: _AHEAD + made.total * len(self.sent) / (_SHARE * plan.events)
        return made

    # -- who works --

    def work(self, seconds: float) -> Story:
        """Send, act and suffer until all is settled, nothing moves any more, or the time is up."""
        if self.plan.control is None:
            # A consumer begins where the stream does when it becomes known: before anything is removed.
            self.go_through()
        for role, number in self.plan.roles():
            name = f"{role}-{number}"
            self._roles[name] = role
            self.hire(name, self._command, [self._upstream, *self.database.upstreams])
        for number in range(self.plan.producers):
            self.hire(f"producer-{number}", self._command, self.database.upstreams)
        in_time = self.run(self.nemesis, self._sent_all, seconds, self._saw)
        peace = nemesis.Nemesis({}, 0, 0, [], None)
        self.run(peace, self._settled(), seconds, self._saw)
        self._stop()
        return self._story({} if in_time else {"when the time was up": 1})

    def _command(self, client: Client) -> list[str]:
        role = self._roles.get(client.name)
        self._ready.discard(client.name)
        self.nemesis.begun(client.name)
        job: producer.Job | worker.Job | naive.Job
        if role is None:
            job = self._sending(client)
            # How far it may go is told on the standard input of each process anew.
            self._told = 0
            return [producer.__name__, json.dumps(job._asdict())]
        control, proxies = self.plan.control, client.proxies
        worst = self.nemesis.arm(role)
        (self._armed.discard if worst is None else self._armed.add)(client.name)
        place = (
            self.database.through(proxies[1] if len(proxies) > 1 else None),
            self._url(proxies[0]),
            self.project,
            str(self.histories / client.name),
            self.plan.lease,
        )
        wrong = control is not None and naive.wrong(control, role)
        if control is None or (role == RELAY and not wrong):
            job = worker.Job(role, *place, worst)
            return [worker.__name__, json.dumps(job._asdict())]
        job = naive.Job(role, control if wrong else None, *place, worst)
        return [naive.__name__, json.dumps(job._asdict())]

    def _sending(self, client: Client) -> producer.Job:
        plan, number = self.plan, int(client.name.rpartition("-")[2])
        return producer.Job(
            client.name,
            self.database.through(client.proxies[0] if client.proxies else None),
            str(self.histories / client.name),
            [*plan.streams],
            plan.events // plan.producers + (number < plan.events % plan.producers),
            self.order.seed,
            plan.rolled_back,
            plan.late,
        )

    def meant(self, client: Client) -> bool:
        """Tell whether a death was the nemesis's doing; count one who was armed to die."""
        if client.killed:
            return True
        assert client.process is not None
        if client.process.returncode != -signal.SIGKILL or client.name not in self._armed:
            return False
        self.nemesis.fell()
        return True

    def _url(self, proxy: Proxy) -> str:
        found = urllib.parse.urlsplit(self.order.url or "redis://localhost")
        secret = f"{found.netloc.rpartition('@')[0]}@" if "@" in found.netloc else ""
        return found._replace(netloc=f"{secret}127.0.0.1:{proxy.port}").geturl()

    # -- what they do --

    def _saw(self, entry: Entry) -> None:
        if entry.op == SEND:
            if entry.phase == INVOKE:
                self.sent.add((entry.who, entry.of["number"]))
            else:
                self.outcomes[entry.of["uuid"]] = entry.phase
        elif entry.op == READY:
            self._ready.add(entry.who)
            self.nemesis.waits = self.nemesis.waits and not self._ready >= self._roles.keys()
        self.nemesis.saw(entry)

    @property
    def _senders(self) -> list[Client]:
        return [one for one in self.clients if one.name not in self._roles]

    def _sent_all(self) -> bool:
        return all(one.process is not None and one.process.poll() == 0 for one in self._senders)

    def _allow(self) -> None:
        """Let the producers go as far as the faults are, so that both last equally long."""
        urge = self.nemesis
        if urge.waits:
            return
        share = _SHARE * (urge.done + 1) / (urge.total + 1)
        if urge.done == urge.total:
            share = 1.0
        each = self.plan.events // self.plan.producers + 1
        self._allowed = min(max(self._allowed, int(share * each) + urge.hunger // 2), each)
        urge.exhausted = self._allowed == each
        if self._allowed > self._told:
            self._told = self._allowed
            for one in self._senders:
                one.tell(str(self._allowed))
        if not self._kept and urge.done * 2 > urge.total and self.plan.control is None:
            self._keep()
        self._tell()

    def _keep(self) -> None:
        """Have nothing removed any more, so that it can come once more in the end."""
        if any(one.frozen for one in self.clients):
            # It may hold SQLite's lock until the nemesis has it go on.
            return
        with contextlib.suppress(BackendUnavailable):
            for stream in self.plan.streams:
                register_consumer(self.database.ledger, stream, _KEEPER)
            self._kept = True

    def _tell(self) -> None:
        if time.monotonic() >= self._next_tale:
            self._next_tale = time.monotonic() + _TELLS_EVERY
            done = f"{self.nemesis.done} of {self.nemesis.total} faults"
            self.order.tell(f"events on {self.database.name}: {len(self.sent)} sent, {done}")

    # -- how it ends --

    def _settled(self) -> Any:
        """Return what tells whether every consumer has done all, or nothing moves any more."""
        patience = _PATIENCE if self.plan.control is None else _PATIENCE_WITH_CONTROLS
        wanted = self._wanted()
        last, until, due = -1, time.monotonic() + patience, 0.0

        def over() -> bool:
            nonlocal last, until, due
            now = time.monotonic()
            if now < due:
                return False
            due = now + _LOOK
            done = dict(self.database.ask(_counts(shop.EFFECTS.c.consumer, shop.EFFECTS.c.uuid)))
            if all(done.get(name, 0) >= number for name, number in wanted.items()):
                return True
            if sum(done.values()) != last or not self._ready >= self._roles.keys():
                last, until = sum(done.values()), now + patience
            return now > until

        return over

    def _wanted(self) -> dict[str, int]:
        by_stream = dict(self.database.ask(_counts(shop.COMMITTED.c.stream)))
        return {name: by_stream.get(READS[name], 0) for name in self.plan.reads}

    def _stop(self) -> None:
        staff = [one for one in self.clients if one.name in self._roles]
        for one in staff:
            one.send(signal.SIGTERM)
        for one in staff:
            assert one.process is not None
            try:
                code = one.process.wait(_STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                self.ended.append(f"{one.name} did not stop when it was told to")
                continue
            fell = code == -signal.SIGKILL and one.name in self._armed
            early = code == -signal.SIGTERM and one.name not in self._ready
            if code and not (fell or early or one.killed):
                self.ended.append(f"{one.name} ended with {code} when it was told to stop")
        if self.plan.control is None:
            self.forget()
            # All of it comes once more, on a server that knows nothing, and changes nothing.
            self.go_through(self.plan.lease)

    def forget(self) -> None:
        """Have the server know nothing of this run."""
        if self.server is not None:
            self.server.ask("FLUSHALL")
            return
        with agentbus.connect(self.order.url, project=self.project, agent="torture") as bus:
            bus.clear()

    def go_through(self, patience: float = 0.0) -> None:
        """Relay and consume what is there once, in this process; wait so long for leases to run out."""
        url = self.order.url if self.server is None else self.server.url
        ledger, lease = self.database.ledger, self.plan.lease
        scribe = Scribe(self.histories / "torture")
        # Connections from before a restart of the database are of no use any more.
        ledger.engine.dispose()
        try:
            with agentbus.connect(url, project=self.project, agent="torture") as bus:
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
            self.ended.append(f"gone through once more, it fails: {error}")

    def _story(self, left: dict[str, int]) -> Story:
        ask, made, table = self.database.ask, self.database.ledger.tables, shop.EFFECTS
        effects: dict[str, list[str]] = {name: [] for name in self.plan.reads}
        for name, uuid in ask(sa.select(table.c.consumer, table.c.uuid).order_by(table.c.id)):
            effects[name].append(uuid)
        waiting = sa.select(sa.func.count()).where(made.outbox.c.position_ms.is_(None))
        if self.plan.control is None:
            left = {**left, "in the outbox": ask(waiting)[0][0]}
        return Story(
            {name: READS[name] for name in self.plan.reads},
            [Row(*row) for row in ask(sa.select(shop.COMMITTED))],
            effects,
            [row[0] for row in ask(sa.select(made.parked.c.event_uuid))],
            left,
            self.ended,
            [said for one in self.clients for said in _tracebacks(self.errors / one.name)],
            {uuid for uuid, phase in self.outcomes.items() if phase == OK},
            {uuid for uuid, phase in self.outcomes.items() if phase == FAIL},
        )

    def figures(self, story: Story) -> dict[str, Any]:
        """Return what was done."""
        return {
            "database": self.database.name,
            "events": len(self.sent),
            "rolled_back": len(story.taken_back),
            "committed": len(story.committed),
            "effects": sum(len(done) for done in story.effects.values()),
            "consumers": len(story.reads),
            "processes": len(self.clients) + self.deaths,
            "came_again": self.came_again,
            **self.nemesis.figures(),
        }


def verdicts(order: Order) -> Iterator[Verdict]:
    """Torture each database once, and yield what came of it."""
    plan = planned(order)
    # SQLite has one writer at a time, who commits in the order of the ids.
    late = {SQLITE: POSTGRESQL} if plan.late else {}
    for wanted in dict.fromkeys(late.get(each, each) for each in order.databases):
        yield tortured(plan, order, wanted)


def tortured(plan: Plan, order: Order, wanted: str) -> Verdict:
    """Carry out a plan on one database; what was wrong is kept in the order's place."""
    began = time.monotonic()
    seconds = 300 + 300 * order.minutes
    with contextlib.ExitStack() as stack:
        place = order.place / (wanted if wanted == SQLITE else POSTGRESQL)
        place.mkdir(parents=True, exist_ok=True)
        database = stack.enter_context(opened(wanted, place, wal=order.seed % 2 == 1))
        server = None
        if order.url is None:
            server = stack.enter_context(Server(place / "server", clock=plan.control is None))
        run = stack.enter_context(Shop(plan, order, database, server))
        story = run.work(seconds)
        if server is None:
            run.forget()
        wrong = violations(story)
        if wrong:
            database.keep(place / "tables")
        return Verdict(
            *("events", order.seed, time.monotonic() - began, run.nemesis.counts, run.wanted),
            *(run.figures(story), wrong, place, order.control),
        )


def _tracebacks(path: pathlib.Path) -> list[str]:
    said = path.read_text(errors="replace")
    return [said[max(0, said.find("Traceback") - 300) :]] if "Traceback" in said else []


def _counts(by: Any, of: Any = None) -> Any:
    counted = sa.func.count() if of is None else sa.func.count(sa.distinct(of))
    return sa.select(by, counted).group_by(by)
