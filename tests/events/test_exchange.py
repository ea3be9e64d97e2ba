"""Two services with databases of their own exchange events under kills, and wipes of Redis."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import multiprocessing
import random
import time

import pytest
import sqlalchemy as sa

import agentbus
from agentbus.events import Relay, open_ledger, register_consumer
from tests.events import exchange
from tests.events.exchange import AT_LEAST, SURELY, TABLES
from tests.servers import client

LOG = logging.getLogger(__name__)
# Forks of a process that has imported all already, which takes longest.
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["tests.events.exchange"])


class Services:
    """Two services, whose processes are started again whenever they were killed."""

    def __init__(self, databases, url: str, project: str, number: int, names, said) -> None:
        self.ledgers = {}
        for service, database in databases.items():
            ledger = self.ledgers[service] = open_ledger(database, make=True)
            ledger.create()
            if ledger.dialect == "sqlite":
                with ledger.engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            with ledger.engine.begin() as connection:
                for table in TABLES:
                    connection.exec_driver_sql(table)
        self._databases, self._number, self._said = databases, number, said
        self.names = names
        self._words = (url, project)
        self._running = {}
        self._register()
        self.begin()

    def _register(self) -> None:
        """Register all consumers in Redis, and have each ledger know of them, before the first event."""
        url, project = self._words
        with agentbus.connect(url, project=project, agent="judge") as bus:
            for service, name in itertools.product(self.ledgers, self.names):
                ledger = self.ledgers[service]
                register_consumer(ledger, exchange.STREAM, f"{service}.{name}", bus=bus)
            for ledger in self.ledgers.values():
                with contextlib.closing(Relay(ledger, bus)) as relay:
                    relay.run_once()

    def begin(self) -> None:
        """Start all processes that do not run."""
        for service, role in itertools.product(self._databases, ("send", "relay", *self.names)):
            process = self._running.get((service, role))
            if process is not None and (process.is_alive() or process.exitcode == 0):
                continue
            words = (str(self._said), role, self._number, self._databases[service])
            process = FRESH.Process(
                target=exchange.apart, args=(*words, *self._words, service), daemon=True
            )
            process.start()
            self._running[service, role] = process

    def kill(self, chance: random.Random) -> bool:
        """Kill one of the processes with -9; returns whether it ran."""
        process = self._running[chance.choice(sorted(self._running))]
        ran = process.is_alive()
        process.kill()
        process.join()
        return ran

    def end(self) -> None:
        """Kill all."""
        for process in self._running.values():
            process.kill()
            process.join()
        for ledger in self.ledgers.values():
            ledger.engine.dispose()

    def effects(self, service: str, name: str) -> collections.Counter[str]:
        """Return how often a consumer of a service acted on each event."""
        wanted = sa.text("SELECT uuid FROM effects WHERE consumer = :name")
        with self.ledgers[service].engine.connect() as connection:
            return collections.Counter(connection.execute(wanted, {"name": name}).scalars())

    def sent(self, service: str) -> set[str]:
        """Return the events that a service committed."""
        with self.ledgers[service].engine.connect() as connection:
            return set(connection.execute(sa.text("SELECT uuid FROM sent")).scalars())

    def lost(self) -> int:
        """Return the number of events that some consumer has yet to act on."""
        return sum(
            self._number - len(self.effects(service, name))
            for service in self.ledgers
            for name in self.names
        )


def judge(
    database: str,
    place,
    server,
    project: str,
    number: int,
    names: tuple[str, ...],
    most: int,
    pause: float,
    wiped_every: int,
) -> collections.Counter[str]:
    """Let two services exchange events under at most `most` kills; returns the kills and wipes."""
    databases = {"shop": database, "billing": f"sqlite:///{place / 'billing.db'}"}
    services = Services(databases, server.url, project, number, names, place / "said")
    chance, faults = random.Random(52), collections.Counter()
    plain = client(server.url)
    until = time.monotonic() + 1500
    try:
        for turn in itertools.count(1):
            time.sleep(pause)
            if turn <= most:
                faults["kills"] += services.kill(chance)
            services.begin()
            if turn <= most and turn % wiped_every == 0:
                plain.flushall()
                faults["wipes"] += 1
            left = services.lost()
            LOG.info("%s, %d effects to come", dict(faults), left)
            if not left or time.monotonic() > until:
                break
        # What is published again now must have no effect any more.
        plain.flushall()
        time.sleep(3.0)
        for service, other in (("shop", "billing"), ("billing", "shop")):
            sent = services.sent(other)
            assert len(sent) == number
            for name in services.names:
                assert sent - set(services.effects(service, name)) == set(), "lost"
                assert set(services.effects(service, name)) - sent == set(), "from nowhere"
            doubled = {u: n for u, n in services.effects(service, SURELY).items() if n > 1}
            assert doubled == {}
    finally:
        services.end()
        plain.close()
    return faults


def test_two_services_exchange_events_under_kills_and_a_wipe(
    postgres_database, tmp_path, own_server, project
):
    faults = judge(
        *(postgres_database, tmp_path, own_server, project, 40, (SURELY, AT_LEAST)),
        most=4,
        pause=0.5,
        wiped_every=4,
    )

    assert faults["wipes"] == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_services_exchange_five_thousand_events_each_way_under_kills_and_wipes(
    postgres_database, tmp_path, own_server, project
):
    faults = judge(
        postgres_database,
        tmp_path,
        own_server,
        project,
        5000,
        (SURELY,),
        most=10_000,
        pause=3.0,
        wiped_every=8,
    )

    assert faults["kills"] >= 10
    assert faults["wipes"] >= 1
