"""Idle workers: one connection, few requests, and nothing that they notice later for it."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus.core.keys import Keys
from agentbus.retry import Backoff
from agentbus.store.scope import Intervals
from tests.conftest import Connect
from tests.servers import Server, ask

PATIENCE = 60.0
# Nobody looks again during a test: what a worker notices, it was woken for.
SELDOM = Intervals(beat=600.0, alive=1800.0, look=600.0, fetch=600.0)
OFTEN = Intervals(beat=0.05, alive=3.0, look=0.05, fetch=0.05)


@pytest.fixture
def intervals() -> Intervals:
    return SELDOM


async def a_coroutine(_delivery: Any) -> None:
    """Do nothing."""


MODES: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "serial": (lambda _delivery: None, {}),
    "threads": (lambda _delivery: None, {"concurrency": 8}),
    "coroutines": (a_coroutine, {"concurrency": 8}),
    "batch": (lambda _deliveries: None, {"batch": True}),
}


@contextlib.contextmanager
def started(*workers: Any) -> Iterator[None]:
    """Run workers in threads, until the end."""
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def until(met: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def resting(bus: agentbus.Bus, *workers: Any, queue: str = "mail") -> None:
    """Wait until workers wait for tasks: each is then a consumer of the queue's bell."""
    bell = bus.scope.keys.bell(queue)

    def listening() -> set[str]:
        found: set[str] = set()
        for group in {worker.group for worker in workers}:
            with contextlib.suppress(agentbus.AgentBusError):
                consumers = ask(bus, "XINFO", "CONSUMERS", bell, group)
                found |= {
                    dict(zip(c[::2], c[1::2], strict=True))[b"name"].decode() for c in consumers
                }
        return found

    until(lambda: listening() >= {worker.name for worker in workers})


def calls(server: Server, project: str, worker: str) -> dict[str, int]:
    """Return how often each command was called, by clients and by scripts, and the worker's beats."""
    found = re.findall(r"cmdstat_(\S+?):calls=(\d+)", server.ask("INFO", "commandstats").decode())
    beats = server.ask("HGET", Keys(project).beat(worker), "number")
    return {name: int(number) for name, number in found} | {"beats": int(beats or 0)}


def sees_to_itself(server: Server, project: str, worker: str) -> None:
    """Check what an idle worker sends between some of its heartbeats, and on how many connections."""
    name = b"agentbus:idler"

    def clients() -> list[bytes]:
        listed: bytes = server.ask("CLIENT", "LIST")
        return [line for line in listed.splitlines() if name in line]

    until(lambda: calls(server, project, worker)["beats"] >= 6)
    until(lambda: len(clients()) == 1)
    before = calls(server, project, worker)
    until(lambda: calls(server, project, worker)["beats"] >= before["beats"] + 8)
    after = calls(server, project, worker)

    assert len(clients()) == 1
    grown = {name: after[name] - before.get(name, 0) for name in after}
    beats = grown["beats"]
    # A script, and a read with a check for cancelled tasks; the first round of a janitor may still go on.
    assert grown["evalsha"] <= beats + 3
    assert grown["xreadgroup"] <= beats + 1
    assert grown["exists"] <= 4 * beats + 2
    for command in ("xread", "hscan"):
        assert grown.get(command, 0) == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_idle_worker_sends_one_heartbeat_and_one_read_on_one_connection(
    mode: str, own_server: Server, project: str
) -> None:
    handler, options = MODES[mode]
    with agentbus.connect(own_server.url, project=project, agent="idler") as bus:
        bus.scope.intervals = OFTEN
        worker = bus.subscribe("mail", handler, **options)
        with started(worker):
            bus.queue("mail").publish_many(range(5))
            until(lambda: worker.done == 5)

            sees_to_itself(own_server, project, worker.name)


def test_so_does_a_paused_one(own_server: Server, project: str) -> None:
    with (
        agentbus.connect(own_server.url, project=project, agent="idler") as bus,
        agentbus.connect(own_server.url, project=project, agent="ada") as ada,
    ):
        bus.scope.intervals = OFTEN
        worker = bus.subscribe("mail", print)
        with started(worker):
            until(bus.workers)
            assert ada.pause(queue="mail").confirmed == (worker.name,)
            server, before = own_server, calls(own_server, project, worker.name)
            until(lambda: calls(server, project, worker.name)["beats"] >= before["beats"] + 8)

            after = calls(own_server, project, worker.name)
            assert after.get("xreadgroup", 0) == before.get("xreadgroup", 0)


async def test_so_does_one_of_an_asynchronous_bus(own_server: Server, project: str) -> None:
    import asyncio

    async with agentbus.aio.connect(own_server.url, project=project, agent="idler") as bus:
        bus.scope.intervals = OFTEN
        worker = bus.subscribe("mail", a_coroutine, concurrency=8)
        running = asyncio.ensure_future(worker.run())
        try:
            await asyncio.to_thread(sees_to_itself, own_server, project, worker.name)
        finally:
            worker.stop()
            await running


def test_idle_workers_confirm_a_pause_at_once_and_resume(connect: Connect) -> None:
    buses = [connect(f"agent-{number}") for number in range(4)]
    ran: SimpleQueue[Any] = SimpleQueue()
    groups = ("one", "one", "one", "two")
    workers = [
        bus.subscribe("mail", lambda delivery: ran.put(delivery.payload), group=group)
        for bus, group in zip(buses, groups, strict=True)
    ]
    with started(*workers), connect() as ada:
        resting(ada, *workers)
        order = ada.pause(queue="mail")
        assert sorted(order.confirmed) == sorted(worker.name for worker in workers)

        ada.queue("mail").publish("later")
        assert ran.empty()
        ada.resume(queue="mail")
        assert [ran.get(timeout=PATIENCE) for _ in range(2)] == ["later", "later"]


def test_the_one_that_is_sent_away_hears_it_among_idle_ones(
    connect: Connect, real_url: str
) -> None:
    connect = partial(connect, url=real_url)
    workers = [connect(f"agent-{number}").subscribe("mail", print) for number in range(3)]
    with started(*workers), connect() as ada:
        resting(ada, *workers)
        for worker in workers:
            assert ada.delete(worker=worker.name).gone == (worker.name,)


def test_an_idle_worker_runs_delayed_tasks_when_they_are_due(connect: Connect) -> None:
    ran: SimpleQueue[Any] = SimpleQueue()
    bus = connect()
    worker = bus.subscribe("mail", lambda delivery: ran.put(delivery.payload))
    with started(worker), connect("eve") as eve:
        resting(eve, worker)
        for delay in (0.1, 0.02):
            eve.queue("mail").publish(delay, delay=delay)
        assert [ran.get(timeout=PATIENCE) for _ in range(2)] == [0.02, 0.1]


def test_an_idle_worker_runs_its_retries_when_they_are_due(connect: Connect) -> None:
    ran: SimpleQueue[int] = SimpleQueue()
    bus = connect()

    def fails_twice(delivery: agentbus.Delivery) -> None:
        ran.put(delivery.attempt)
        if delivery.attempt < 3:
            raise ValueError

    worker = bus.subscribe("mail", fails_twice, backoff=Backoff(first=0.01))
    with started(worker):
        bus.queue("mail").publish("x")
        assert [ran.get(timeout=PATIENCE) for _ in range(3)] == [1, 2, 3]


def test_one_of_several_idle_workers_stops_at_once(connect: Connect) -> None:
    workers = [connect(f"agent-{number}").subscribe("mail", print) for number in range(3)]
    with connect() as ada, started(*workers[:2]):
        with started(workers[2]):
            resting(ada, *workers)
        assert len(ada.workers()) == 2


def test_a_foreign_value_in_place_of_the_bell_is_replaced(real_url: str, project: str) -> None:
    ran: SimpleQueue[Any] = SimpleQueue()
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        bus.scope.intervals = SELDOM
        bell = bus.scope.keys.bell("mail")
        ask(bus, "SET", bell, "x")
        worker = bus.subscribe("mail", lambda delivery: ran.put(delivery.payload))
        with started(worker):
            resting(bus, worker)
            ask(bus, "SET", bell, "x")
            bus.queue("mail").publish("first")
            assert ran.get(timeout=PATIENCE) == "first"
            resting(bus, worker)
            bus.queue("mail").publish("second", delay=0.01)
            assert ran.get(timeout=PATIENCE) == "second"


def test_a_queue_that_is_deleted_under_an_idle_worker_is_made_again(connect: Connect) -> None:
    ran: SimpleQueue[Any] = SimpleQueue()
    bus, eve = connect(), connect("eve")
    worker = bus.subscribe("mail", lambda delivery: ran.put(delivery.payload))
    keys = eve.scope.keys
    with started(worker):
        resting(eve, worker)
        ask(eve, "DEL", *worker._consumer.streams.values(), keys.bell("mail"))
        eve.queue("mail").publish("first")
        assert ran.get(timeout=PATIENCE) == "first"
