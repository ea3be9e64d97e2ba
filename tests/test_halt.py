"""A halt stops every worker of a project at once, and loses nothing."""

from __future__ import annotations

import collections
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

import agentbus
from tests.conftest import Connect
from tests.servers import Shell
from tests.small_worker import PATIENCE, Registry
from tests.test_pausing_workers import ROOT, Running, intervals, listed, running, wait_for

# The fixtures are used by their names.
__all__ = ["intervals", "running"]

# Each begun and ended task is a line, in one write, so that processes may share the file.
CREW = """
import os, sys, time, threading, agentbus
url, project, path, first, number = sys.argv[1:]
book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def handle(delivery):
    os.write(book, f"begun {delivery.payload}\\n".encode())
    time.sleep(0.005)
    os.write(book, f"ended {delivery.payload}\\n".encode())
with agentbus.connect(url, project=project) as bus:
    for one in range(int(first), int(first) + int(number)):
        worker = bus.subscribe("mail" if one % 2 else "post", handle, concurrency=1 + one % 3)
        threading.Thread(target=worker.run, daemon=True).start()
    sys.stdin.read()
"""
TASKS = 3000


class Crews:
    """Workers in processes, and what they wrote down."""

    def __init__(self, bus: agentbus.Bus, url: str, path: pathlib.Path) -> None:
        self.bus = bus
        self._words = [sys.executable, "-c", CREW, url, bus.project, str(path)]
        self._path = path
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, processes: int, each: int) -> None:
        for one in range(processes):
            self._started.append(
                subprocess.Popen(
                    [*self._words, str(one), str(each)],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                )
            )
        listed(self.bus, processes * each)

    def wrote(self, word: str) -> list[str]:
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return [payload for said, payload in lines if said == word]

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def crews(real_url: str, project: str, tmp_path: pathlib.Path) -> Iterator[Crews]:
    """Workers in processes; they are killed at the end."""
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        found = Crews(bus, real_url, tmp_path / "book")
        yield found
        found.kill()


def publish(bus: agentbus.Bus) -> None:
    for name in ("mail", "post"):
        bus.queue(name, bound=TASKS).publish_many(f"{name}-{n}" for n in range(TASKS // 2))


def stops_them_all(crews: Crews) -> float:
    """Halt twenty workers in the midst of their work; returns how many seconds that took."""
    bus = crews.bus
    wait_for(bus, lambda: len(crews.wrote("begun")) > 20)
    began = time.monotonic()
    order = bus.halt(why="too hot")
    took = time.monotonic() - began
    begun = crews.wrote("begun")

    # every one has confirmed, and none begins anything until it is told to
    assert (order.kind, order.why, order.unconfirmed) == ("project", "too hot", ())
    assert len(order.confirmed) == 20
    seen = {one.worker: one.seen for one in bus.workers()}
    wait_for(bus, lambda: all(one.seen > seen[one.worker] for one in bus.workers()))
    assert {one.state for one in bus.workers()} == {"paused"}
    assert crews.wrote("begun") == begun
    # what ran was finished
    assert collections.Counter(crews.wrote("ended")) == collections.Counter(begun)
    assert len(begun) < TASKS

    # and nothing is lost, and nothing runs twice
    assert bus.resume() is True
    wait_for(bus, lambda: sum(one.done for one in bus.workers()) == TASKS)
    assert sorted(crews.wrote("ended")) == sorted(crews.wrote("begun"))
    assert len(set(crews.wrote("ended"))) == len(crews.wrote("ended")) == TASKS
    return took


def test_a_halt_stops_twenty_workers_and_loses_nothing(crews: Crews) -> None:
    crews.start(processes=2, each=10)
    publish(crews.bus)

    stops_them_all(crews)


@pytest.mark.slow
def test_a_halt_of_twenty_processes_takes_less_than_a_second(crews: Crews) -> None:
    crews.start(processes=20, each=1)
    took = []
    for _ in range(5):
        wait_for(crews.bus, lambda: all(one.state == "working" for one in crews.bus.workers()))
        began = time.monotonic()
        assert len(crews.bus.halt().confirmed) == 20
        took.append(time.monotonic() - began)
        crews.bus.resume()
    publish(crews.bus)
    took.append(stops_them_all(crews))
    assert max(took) < 1, took


def test_a_worker_that_starts_during_a_halt_takes_nothing(
    bus: agentbus.Bus, running: Callable[..., Running]
) -> None:
    assert bus.halt().confirmed == ()
    task = bus.queue("mail").publish(1)

    one = running()
    (before,) = bus.workers()
    wait_for(bus, lambda: bus.workers()[0].seen > before.seen)

    assert one.ran == []
    assert bus.resume() is True
    assert bus.queue("mail").result(task, wait=PATIENCE) == "done"


def test_nobody_fetches_during_a_halt(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.halt()

    assert bus.queue("mail").fetch() == []
    bus.resume()
    assert [delivery.payload for delivery in bus.queue("mail").fetch()] == [1]


def test_an_order_for_a_queue_outlasts_the_end_of_a_halt(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    bus.queue("mail").pause()
    bus.halt()

    assert [(order.kind, order.name) for order in bus.paused()] == [
        *(("project", None), ("queue", "mail")),
    ]
    assert bus.resume() is True
    assert [order.kind for order in bus.paused()] == ["queue"]
    assert bus.resume() is False
    assert bus.queue("mail").fetch() == []


async def test_a_halt_by_an_asynchronous_bus(abus: agentbus.AsyncBus) -> None:
    assert (await abus.halt(why="x")).kind == "project"
    assert [order.why for order in await abus.paused()] == ["x"]
    assert await abus.resume() is True


def test_a_live_worker_that_does_not_confirm_is_named(bus: agentbus.Bus, connect: Connect) -> None:
    Registry(connect("bob"), "mail", "host:1:a").beat()

    assert bus.halt(wait=0).unconfirmed == ("host:1:a",)


def test_the_shell_halts_and_resumes(real_shell: Shell) -> None:
    assert real_shell.ok("halt", "--why", "in circles").startswith("project halted by ada since ")
    (order,) = real_shell.records("pause")
    assert (order["kind"], order["name"], order["why"]) == ("project", None, "in circles")
    assert real_shell.ok("resume") == "project resumed\n"
    assert real_shell.ok("resume") == "project was not halted\n"
    assert real_shell.records("resume") == [{"kind": "project", "name": None, "resumed": False}]


def test_a_halt_that_a_worker_does_not_confirm_is_exit_3(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        Registry(bus, "mail", "host:1:a").beat()

        done = real_shell.run("halt", "--wait", "0")

    assert done.returncode == 3
    assert "host:1:a did not confirm" in done.stderr
    assert real_shell.records("pause")[0]["kind"] == "project"
