"""A shop, its database and its server, and all the processes that send, relay and consume."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy import exc

from agentbus.events import Ledger
from tests.events.postgres import Postgres
from tests.proxy import Proxy
from tests.servers import Server, program, scrubbed
from tests.soak_events import naive, nemesis, shop
from tests.soak_events.judging import Row, Story
from tests.soak_events.nemesis import Nemesis, Places, Slot

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_GLANCE = 0.02
# Of the events that go with the faults; the rest is for those that find nobody at work.
_SHARE = 0.7
_LOOK = 0.3
_RELAY = "relay"
_PROJECT = "soak"
# Without any progress for so long, in seconds, what is not done never will be.
_PATIENCE = 60.0


class Plan(NamedTuple):
    """What is to be sent, by whom, and what is to go wrong meanwhile."""

    database: str = "sqlite"
    events: int = 20_000
    rolled_back: float = 0.1
    producers: int = 6
    relays: int = 2
    each: int = 2
    kills: int = 500
    server_kills: int = 50
    freezes: int = 50
    cuts: int = 100  # Half of them with a RST, half of them half-open.
    wipes: int = 10
    restarts: int = 5  # Of PostgreSQL.
    lease: float = 2.0
    gap: float = 0.5  # Seconds from one fault to the next, about.
    # Of servers, in seconds: most are short, some longer than one's patience for a command.
    outages: tuple[float, ...] = (0.0, 0.0, 0.2, 0.5, 2.0)
    naive: bool = False

    def faults(self) -> dict[str, int]:
        """Return how many there are to be of each kind."""
        found = {
            nemesis.KILL: self.kills,
            nemesis.SERVER_KILL: self.server_kills,
            nemesis.FREEZE: self.freezes,
            nemesis.CUT: self.cuts - self.cuts // 2,
            nemesis.HALF_OPEN: self.cuts // 2,
            nemesis.WIPE: self.wipes,
        }
        if self.database == "postgresql":
            found[nemesis.DATABASE] = self.restarts
        return found


class Site:
    """Runs a plan once."""

    def __init__(self, plan: Plan, seed: int, place: pathlib.Path) -> None:
        self.plan, self.seed, self.place = plan, seed, place
        self.ended: list[str] = []
        self.sent = self.taken_back = self.spawned = 0
        self.took = self.drained = 0.0
        self._open = contextlib.ExitStack()
        self._slots: list[Slot] = []
        self._producers: list[subprocess.Popen[str]] = []
        self._allowed = 0
        self._environment = {
            **scrubbed(dict(os.environ)),
            "HOME": str(place),
            "PYTHONPATH": str(ROOT),
            "AGENTBUS_PROJECT": _PROJECT,
            "AGENTBUS_DEADLINE": "1",
            "AGENTBUS_LOG_LEVEL": "off",
        }

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        self._server = self._open.enter_context(Server(self.place / "redis"))
        self._postgres: Postgres | None = None
        if self.plan.database == "postgresql":
            self._postgres = self._open.enter_context(Postgres(fsync="off"))
            self._url = self._postgres.url
        else:
            self._url = f"sqlite:///{self.place / 'shop.db'}"
        self._engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        if self._postgres is None and self.seed % 2:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        self._ledger = Ledger(self._engine)
        self._ledger.create()
        with self._engine.begin() as connection:
            shop.METADATA.create_all(connection)
            connection.execute(sa.insert(shop.COUNTER).values(stream=shop.ORDERS, last=0))
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in [*self._producers, *(slot.process for slot in self._slots)]:
            if process is not None:
                process.kill()
                process.communicate()
        self._engine.dispose()
        self._open.close()

    # -- the run --

    def run(self) -> Story:
        """Send, act and suffer until all is settled, or nothing moves any more."""
        began = time.monotonic()
        plan = self.plan
        places = Places(self._server, self._postgres, self._tokens, plan.lease, plan.outages)
        for role, number in self._roles():
            self._slots.append(Slot(role, number, self.place, self._proxies()))
        self._nemesis = Nemesis(self.plan.faults(), self.plan.gap, self._slots, places, self.seed)
        if not self.plan.naive:
            # A consumer begins where the stream does when it becomes known: before anything is removed.
            self._once([program(), "consume", shop.__name__, "--once", "--database", self._url])
        for slot in self._slots:
            self._start(slot)
        self._producers = [self._producer(number) for number in range(self.plan.producers)]
        while not self._nemesis.finished or any(each.poll() is None for each in self._producers):
            self._nemesis.tick()
            self._watch()
            self._allow()
            time.sleep(_GLANCE)
        self._nemesis.end()
        self._count()
        self.took = time.monotonic() - began
        self._drain()
        self._stop()
        self.drained = time.monotonic() - began - self.took
        return self._story()

    @property
    def _relays(self) -> int:
        # Two naive ones publish everything twice, and hide what each of them loses.
        return 1 if self.plan.naive else self.plan.relays

    def _roles(self) -> list[tuple[str, int]]:
        found = [(_RELAY, number) for number in range(self._relays)]
        return found + [(name, number) for name in shop.READS for number in range(self.plan.each)]

    def _proxies(self) -> list[Proxy]:
        upstreams = [self._server.socket]
        if self._postgres is not None:
            upstreams.append(self._postgres.socket)
        return [self._open.enter_context(Proxy(each)) for each in upstreams]

    def _start(self, slot: Slot) -> None:
        environment = {**self._environment, "AGENTBUS_URL": slot.proxies[0].url}
        step = self._nemesis.arm(slot.role)
        if self.plan.naive:
            # Each dies once at its worst moment, so that it is found out in every run.
            step = None if slot.fell else naive.WORST
        slot.armed = step is not None
        slot.said = slot.output.stat().st_size if slot.output.exists() else 0
        if step is not None:
            environment["AGENTBUS_TEST_KILL"] = step
        with slot.output.open("ab") as output, slot.errors.open("ab") as errors:
            slot.begin(
                subprocess.Popen(
                    self._words(slot),
                    env=environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                )
            )
        self.spawned += 1

    def _words(self, slot: Slot) -> list[str]:
        url = self._url
        if self._postgres is not None:
            port = slot.proxies[1].port
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        if self.plan.naive:
            script = [sys.executable, "-m", naive.__name__]
            return [*script, url, slot.proxies[0].url, _PROJECT, slot.role]
        words = ["--database", url, "--lease", str(self.plan.lease)]
        if slot.role == _RELAY:
            return [program(), "outbox", "relay", *words]
        return [program(), "consume", shop.__name__, "--name", slot.role, *words]

    def _producer(self, number: int) -> subprocess.Popen[str]:
        plan = self.plan
        share = plan.events // plan.producers + (number < plan.events % plan.producers)
        path = self.place / f"producer-{number}"
        words = [self._url, number, share, self.seed, plan.rolled_back, path]
        with (self.place / f"producer-{number}.err").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.soak_events.producer", *map(str, words)],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def _allow(self) -> None:
        """Let the producers go as far as the faults are, so that both last equally long."""
        share = _SHARE * (self._nemesis.done + 1) / (self._nemesis.total + 1)
        if self._nemesis.done == self._nemesis.total:
            share = 1.0
        each = self.plan.events // self.plan.producers + 1
        allowed = min(int(share * each) + self._nemesis.hunger // 2, each)
        self._nemesis.exhausted = allowed == each
        if allowed > self._allowed:
            self._allowed = allowed
            for process in self._producers:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(f"{allowed}\n")
                    process.stdin.flush()

    def _watch(self) -> None:
        """Replace whoever died; who ended without having to is written down."""
        for slot in self._slots:
            assert slot.process is not None
            code = slot.process.poll()
            if code is None:
                continue
            if code == -signal.SIGKILL and slot.armed and not slot.killed:
                slot.fell = True
                self._nemesis.died_at_step()
            elif not (code == -signal.SIGKILL and slot.killed):
                said = slot.errors.read_text(errors="replace")[-500:]
                self.ended.append(f"{slot.name} ended with {code}: {said}")
            self._start(slot)

    def _count(self) -> None:
        for number, process in enumerate(self._producers):
            path = self.place / f"producer-{number}"
            if process.returncode or not path.exists():
                said = (self.place / f"producer-{number}.err").read_text()[-500:]
                self.ended.append(f"producer {number} ended with {process.returncode}: {said}")
                continue
            sent, taken_back, _troubles = map(int, path.read_text().split())
            self.sent += sent
            self.taken_back += taken_back

    def _drain(self) -> None:
        """Wait until every consumer has done all, or nothing moves any more."""
        patience = 3.0 if self.plan.naive else _PATIENCE
        wanted = self._wanted()
        last, until = -1, time.monotonic() + patience
        while time.monotonic() < until:
            self._watch()
            done = self._done()
            if all(done.get(name, 0) >= number for name, number in wanted.items()):
                return
            if sum(done.values()) != last:
                last, until = sum(done.values()), time.monotonic() + patience
            time.sleep(_LOOK)

    def _stop(self) -> None:
        for slot in self._slots:
            assert slot.process is not None
            slot.process.terminate()
        for slot in self._slots:
            assert slot.process is not None
            try:
                code = slot.process.wait(60)
            except subprocess.TimeoutExpired:
                slot.process.kill()
                code = slot.process.wait()
                self.ended.append(f"{slot.name} did not stop when it was told to")
            if code and not self.plan.naive and not (slot.armed and code == -signal.SIGKILL):
                self.ended.append(f"{slot.name} ended with {code} when it was told to stop")
        if not self.plan.naive:
            # All of it comes once more, on a server that knows nothing, and changes nothing.
            self._server.ask("FLUSHALL")
            url = ["--once", "--database", self._url, "--lease", str(self.plan.lease)]
            for words in (["outbox", "relay"], ["consume", shop.__name__]):
                self._once([program(), *words, *url])

    def _once(self, words: list[str]) -> None:
        environment = {**self._environment, "AGENTBUS_URL": self._server.url}
        done = subprocess.run(
            words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            self.ended.append(f"{words[1:3]} ended with {done.returncode}: {done.stderr[-500:]}")

    # -- what the database holds --

    def _wanted(self) -> dict[str, int]:
        by_stream = dict(self._ask(_counts(shop.COMMITTED.c.stream)))
        return {name: by_stream.get(stream, 0) for name, stream in shop.READS.items()}

    def _done(self) -> dict[str, int]:
        return dict(self._ask(_counts(shop.EFFECTS.c.consumer, shop.EFFECTS.c.uuid)))

    def _tokens(self, role: str) -> int:
        lease = self._ledger.tables.lease
        asked = sa.select(sa.func.sum(lease.c.token)).where(lease.c.role == role)
        with contextlib.suppress(exc.DBAPIError):
            return int(self._ask(asked)[0][0] or 0)
        return 0

    def _ask(self, asked: Any) -> list[Any]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(asked)]

    def _story(self) -> Story:
        made, table = self._ledger.tables, shop.EFFECTS
        effects: dict[str, list[str]] = {name: [] for name in shop.READS}
        for name, uuid in self._ask(sa.select(table.c.consumer, table.c.uuid).order_by(table.c.id)):
            effects[name].append(uuid)
        waiting = sa.select(sa.func.count()).where(made.outbox.c.position_ms.is_(None))
        self._left = {} if self.plan.naive else {"in the outbox": self._ask(waiting)[0][0]}
        return Story(
            dict(shop.READS),
            [Row(*row) for row in self._ask(sa.select(shop.COMMITTED))],
            effects,
            [row[0] for row in self._ask(sa.select(made.parked.c.event_uuid))],
            self._left,
            self.ended,
            [said for slot in self._slots for said in _tracebacks(slot.errors)],
        )

    def keep(self) -> None:
        """Write down all tables, so that they can be looked at when their server is gone."""
        for table in (*self._ledger.metadata.sorted_tables, *shop.METADATA.sorted_tables):
            with (self.place / f"{table.name}.jsonl").open("w") as file:
                for row in self._ask(sa.select(table)):
                    file.write(json.dumps(row) + "\n")

    def figures(self, story: Story) -> str:
        """Return what was done, in words."""
        found = self._nemesis
        faults = ", ".join(f"{kind} {number}" for kind, number in found.counts.items())
        acted = sum(len(done) for done in story.effects.values())
        return (
            f"{self.plan.database}: {self.sent} events sent, {self.taken_back} rolled back, "
            f"{len(story.committed)} committed; {acted} effects of {len(story.reads)} consumers\n"
            f"faults: {faults} ({found.at_steps} of the kills at a step, {found.truncated} servers "
            f"lost their tail, {found.overtaken} frozen ones overtaken); {self.spawned} processes\n"
            f"{self.took:.1f} s, and {self.drained:.1f} s until all was drained"
        )

    def too_few(self) -> dict[str, int]:
        """Return which faults were missing, so that a run proves less than it says."""
        wanted, done = self.plan.faults(), self._nemesis.counts
        return {kind: done[kind] for kind, number in wanted.items() if done[kind] < number}


def _tracebacks(path: pathlib.Path) -> list[str]:
    said = path.read_text(errors="replace")
    return [said[max(0, said.find("Traceback") - 300) :]] if "Traceback" in said else []


def _counts(by: Any, of: Any = None) -> Any:
    counted = sa.func.count() if of is None else sa.func.count(sa.distinct(of))
    return sa.select(by, counted).group_by(by)
