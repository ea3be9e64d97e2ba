"""Workers as users run them: paused, resumed and sent away from outside, in threads and in processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

import agentbus
from agentbus.retry import Backoff
from agentbus.store.scope import Intervals
from agentbus.store.steps import Wait
from agentbus.workers.fetch import fetch
from tests.conftest import Connect
from tests.pausing import run_past
from tests.servers import ROOT, Shell, ask
from tests.small_worker import BRISK

PATIENCE = 30.0
SOON = Backoff(first=0.01)


def wait_for(bus: agentbus.Bus, met: Callable[[], Any]) -> None:
    """Block until something is so, looking again whenever anybody rings, or a beat later."""
    deadline, tail = time.monotonic() + PATIENCE, "0-0"

    def rung() -> Any:
        reply = yield Wait(bus.scope.keys.bell("mail"), tail, 1.0)
        return reply

    while not met():
        assert time.monotonic() < deadline
        reply = bus._run("wait", rung())
        tail = reply[-1][0].decode() if reply else tail


class Running:
    """A worker in a thread, and what it ran."""

    def __init__(self, bus: agentbus.Bus, handler: Any = None, **options: Any) -> None:
        self.ran: list[Any] = []
        self.attempts: list[int] = []
        self._handler = handler
        self.worker = bus.subscribe("mail", self._handle, **{"backoff": SOON, **options})
        self.name = self.worker.name
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()

    def _handle(self, delivery: Any) -> Any:
        self.ran.append(delivery.payload)
        self.attempts.append(delivery.attempt)
        return self._handler(delivery) if self._handler else "done"

    def end(self) -> None:
        self.worker.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def intervals() -> Intervals:
    """Workers in this process look around more often than workers of users."""
    return BRISK


@pytest.fixture
def running(connect: Connect, bus: agentbus.Bus) -> Iterator[Callable[..., Running]]:
    """Return a function that starts a worker in a thread; it is listed when it returns."""
    started: list[Running] = []

    def start(agent: str = "bob", handler: Any = None, **options: Any) -> Running:
        one = Running(connect(agent), handler, **options)
        started.append(one)
        wait_for(bus, lambda: one.name in {found.worker for found in bus.workers()})
        return one

    yield start
    for one in started:
        one.end()


@pytest.fixture
def queue(bus: agentbus.Bus) -> agentbus.Queue:
    """The queue `mail`, which has had a task."""
    found: agentbus.Queue = bus.queue("mail")
    found.publish("first")
    (delivery,) = found.fetch()
    delivery.ack()
    return found


def test_a_worker_is_listed_while_it_runs(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    one = running(group="g", concurrency=3)
    for delivery in queue.fetch(group="g"):
        delivery.ack()
    queue.result(queue.publish(1), wait=PATIENCE, group="g")

    wait_for(bus, lambda: bus.workers()[0].done == 1 + (one.ran[0] == "first"))
    (found,) = bus.workers()
    assert (found.worker, found.agent_id, found.queue, found.group) == (
        *(one.name, "bob", "mail", "g"),
    )
    assert (found.concurrency, found.alive, found.pid) == (3, True, os.getpid())
    one.end()
    assert bus.workers() == []


def test_after_pause_nothing_that_is_published_runs_until_resume(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    both = [running(), running("eve")]
    queue.result(queue.publish("before"), wait=PATIENCE)

    order = queue.pause()
    ran = [list(one.ran) for one in both]
    task = queue.publish_many(range(100))[-1]
    beaten = {found.worker: found.seen for found in bus.workers()}
    wait_for(bus, lambda: all(one.seen > beaten[one.worker] for one in bus.workers()))

    assert sorted(order.confirmed) == sorted(one.name for one in both)
    assert [one.ran for one in both] == ran
    assert {found.state for found in bus.workers()} == {"paused"}
    queue.resume()
    assert queue.result(task, wait=PATIENCE) == "done"


def test_pause_and_resume_in_quick_turns_never_let_a_task_slip(
    queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    one = running()
    for turn in range(4):
        assert queue.pause().confirmed == (one.name,)
        task = queue.publish(turn)
        assert turn not in one.ran
        queue.resume()
        if turn % 2:
            queue.result(task, wait=PATIENCE)
    assert [payload for payload in one.ran if payload != "first"] == list(range(4))


def test_a_worker_that_starts_while_its_queue_is_paused_takes_nothing(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    queue.pause()
    task = queue.publish(1)

    one = running()
    (before,) = bus.workers()
    wait_for(bus, lambda: bus.workers()[0].seen > before.seen)

    assert one.ran == []
    queue.resume()
    assert queue.result(task, wait=PATIENCE) == "done"


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("coroutine", [False, True], ids=["plain", "async"])
def test_what_runs_goes_on_and_the_rest_of_its_batch_is_given_back(
    bus: agentbus.Bus, queue: agentbus.Queue, connect: Connect, concurrency: int, coroutine: bool
) -> None:
    # given a worker in the midst of a batch
    go_on, ran, attempts = threading.Event(), [], []

    def plain(delivery: Any) -> str:
        ran.append(delivery.payload)
        attempts.append(delivery.attempt)
        if delivery.payload >= 40:
            assert go_on.wait(PATIENCE)
        return "done"

    async def coroutines(delivery: Any) -> str:
        return await asyncio.to_thread(plain, delivery)

    ids = queue.publish_many(range(100))
    worker = connect("bob").subscribe(
        *("mail", coroutines if coroutine else plain), concurrency=concurrency
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(bus, lambda: len(ran) >= 41)

    # when its queue is paused
    order = queue.pause()
    begun = len(ran)
    go_on.set()

    # then what ran is done, nothing else has begun, and no attempt is lost
    assert order.confirmed == (worker.name,)
    for task in ids[:40]:
        queue.result(task, wait=PATIENCE)
    wait_for(bus, lambda: bus.workers()[0].pending == 0)
    assert len(ran) == begun <= 40 + concurrency
    queue.resume()
    for task in ids:
        assert queue.result(task, wait=PATIENCE) == "done"
    worker.stop()
    thread.join(PATIENCE)
    assert sorted(ran) == list(range(100))
    assert set(attempts) == {1}


def test_a_retry_that_falls_due_while_paused_waits(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    heard: SimpleQueue[tuple[str, ...]] = SimpleQueue()

    def handler(delivery: Any) -> str:
        if delivery.attempt == 1:
            # Before it fails: a worker that has not heard yet may take a retry that is due at once.
            heard.put(queue.pause(wait=PATIENCE).confirmed)
            raise ValueError("not yet")
        return "done"

    one = running(handler=handler)
    task = queue.publish("retry")
    assert heard.get(timeout=PATIENCE) == (one.name,)
    wait_for(bus, lambda: bus.workers()[0].pending == 0)
    (before,) = bus.workers()
    wait_for(bus, lambda: bus.workers()[0].seen > before.seen)

    assert one.attempts == [1]
    queue.resume()
    assert queue.result(task, wait=PATIENCE) == "done"
    assert one.attempts == [1, 2]


def test_a_paused_agent_leaves_the_work_to_others(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    bob, eve = running("bob"), running("eve")
    assert bus.pause(agent="bob").confirmed == (bob.name,)
    ran = len(bob.ran)

    for task in queue.publish_many(range(20)):
        assert queue.result(task, wait=PATIENCE) == "done"

    assert (len(bob.ran), len(eve.ran) >= 20) == (ran, True)
    bus.resume(agent="bob")


def test_a_paused_worker_stops_when_it_is_told(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    one = running()
    queue.pause()

    one.end()

    assert bus.workers() == []


def test_drain_waits_while_its_queue_is_paused(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    queue.pause()
    task = queue.publish(1)
    one = running(drain=True)
    (before,) = bus.workers()
    wait_for(bus, lambda: bus.workers()[0].seen > before.seen)

    assert one.thread.is_alive()
    queue.resume()
    assert queue.result(task, wait=PATIENCE) == "done"
    one.thread.join(PATIENCE)
    assert not one.thread.is_alive()


def test_delete_has_a_worker_finish_and_leave(
    bus: agentbus.Bus, queue: agentbus.Queue, running: Callable[..., Running]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handler(_delivery: Any) -> str:
        begun.set()
        assert go_on.wait(PATIENCE)
        return "done"

    one = running(handler=handler)
    task = queue.publish("long")
    assert begun.wait(PATIENCE)
    assert bus.delete(worker=one.name, wait=0.1).unconfirmed == (one.name,)

    go_on.set()
    one.thread.join(PATIENCE)

    assert not one.thread.is_alive()
    assert queue.result(task) == "done"
    assert bus.workers() == []


def test_run_once_takes_nothing_while_paused(queue: agentbus.Queue, connect: Connect) -> None:
    ran: list[Any] = []
    queue.pause()
    queue.publish(1)
    with connect("bob").subscribe("mail", lambda d: ran.append(d.payload)) as worker:
        assert worker.run_once() == 0
        queue.resume()
        while not ran:
            worker.run_once(wait=0.1)

    assert ran == [1]


def test_fetch_returns_nothing_while_paused(
    bus: agentbus.Bus, queue: agentbus.Queue, connect: Connect
) -> None:
    bus.agents()
    queue.publish(1)
    queue.pause()

    assert queue.fetch() == []
    assert queue.fetch(block=0.2) == []

    queue.resume()
    assert [delivery.payload for delivery in queue.fetch()] == [1]


def test_a_fetch_that_waits_gets_nothing_that_is_published_after_pause(
    bus: agentbus.Bus, queue: agentbus.Queue, connect: Connect
) -> None:
    got: list[Any] = []
    other = connect("bob").queue("mail")
    waiting = threading.Thread(target=lambda: got.extend(other.fetch(block=1.0)))
    waiting.start()
    queue.pause()
    queue.publish(1)
    waiting.join(PATIENCE)

    assert got == []
    queue.resume()
    (delivery,) = queue.fetch()
    assert (delivery.payload, delivery.attempt) == (1, 1)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_pause_while_a_fetch_takes_a_task_costs_no_attempt(
    queue: agentbus.Queue, connect: Connect, attempt: int
) -> None:
    queue.publish(1, attempts=attempt)
    if attempt == 2:
        (delivery,) = queue.fetch()
        delivery.retry(0.0)
    bob = connect("bob")
    op = fetch(bob.runner, "mail", group="default", count=1, block=None)

    # when the attempt has been counted, and the task was not handed out yet
    assert run_past(bob, op, "begin_attempt", queue.pause) == []

    queue.resume()
    assert [(one.payload, one.attempt) for one in queue.fetch()] == [(1, attempt)]


# -- processes --

BODY = """
import sys, signal, agentbus
with agentbus.connect(sys.argv[1], project=sys.argv[2], agent=sys.argv[3]) as bus:
    worker = bus.subscribe("mail", lambda delivery: "done")
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
"""


@pytest.fixture
def processes(real_url: str, project: str) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that starts a worker process of an agent."""
    started: list[subprocess.Popen[bytes]] = []

    def start(agent: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", BODY, real_url, project, agent]
        one = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def real_bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    """A bus on the run's real server, with a queue `mail`."""
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        opened.queue("mail").publish("first")
        yield opened


def listed(bus: agentbus.Bus, number: int) -> None:
    wait_for(bus, lambda: len([one for one in bus.workers() if one.alive]) == number)


def test_processes_stand_still_and_go_on(
    real_bus: agentbus.Bus, processes: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    for agent in ("bob", "eve", "joe"):
        processes(agent)
    listed(real_bus, 3)
    queue = real_bus.queue("mail")

    order = queue.pause()
    ids = queue.publish_many(range(200))
    seen = {one.worker: one.seen for one in real_bus.workers()}
    wait_for(real_bus, lambda: all(one.seen > seen[one.worker] for one in real_bus.workers()))

    assert len(order.confirmed) == 3
    assert [task for task in ids if ask(real_bus, "EXISTS", real_bus.scope.keys.result(task))] == []
    queue.resume()
    for task in ids:
        assert queue.result(task, wait=PATIENCE) == "done"


def test_a_process_that_is_killed_is_not_waited_for_and_can_be_removed(
    real_bus: agentbus.Bus, processes: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = processes("bob")
    listed(real_bus, 1)
    (one,) = real_bus.workers()
    process.kill()
    process.wait()
    # It beat once a second; half of one is enough to call a killed one dead.
    real_bus.scope.intervals = Intervals(alive=0.5)

    assert real_bus.queue("mail").pause(wait=PATIENCE).unconfirmed == ()

    assert [found.alive for found in real_bus.workers()] == [False]
    assert real_bus.delete(worker=one.worker).gone == (one.worker,)
    assert real_bus.workers() == []


def test_a_frozen_process_asks_before_it_runs_what_it_took(
    real_bus: agentbus.Bus, processes: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    # given a worker that is blocked in taking, and frozen there
    process = processes("bob")
    listed(real_bus, 1)
    queue = real_bus.queue("mail")
    wait_for(real_bus, lambda: real_bus.workers()[0].done == 1)
    process.send_signal(signal.SIGSTOP)
    assert queue.pause(wait=PATIENCE).unconfirmed == ()
    task = queue.publish("later")

    # when it goes on while its queue is paused
    process.send_signal(signal.SIGCONT)
    listed(real_bus, 1)
    wait_for(real_bus, lambda: real_bus.workers()[0].state == "paused")

    # then it has run nothing
    assert ask(real_bus, "EXISTS", real_bus.scope.keys.result(task)) == 0
    queue.resume()
    assert queue.result(task, wait=PATIENCE) == "done"


def test_delete_ends_a_process(
    real_bus: agentbus.Bus, processes: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = processes("bob")
    listed(real_bus, 1)

    found = real_bus.delete(agent="bob")

    assert len(found.gone) == 1
    assert process.wait(PATIENCE) == 0


def test_the_shell_pauses_a_worker_of_the_shell(real_bus: agentbus.Bus, real_shell: Shell) -> None:
    process = real_shell.start("work", "mail", "--agent", "bob", "--", "echo", "hi")
    listed(real_bus, 1)

    (order,) = real_shell.records("pause", "mail", "--why", "the moon")
    task = real_bus.queue("mail").publish(1)
    assert len(order["confirmed"]) == 1
    assert real_shell.run("result", task).returncode == 5
    assert "paused by ada: the moon" in real_shell.ok("agent", "list")

    real_shell.ok("resume", "mail")
    assert real_shell.ok("result", task, "--wait", "30") == "hi\n"
    real_shell.ok("agent", "delete", "bob")
    assert process.wait(PATIENCE) == 0
    process.communicate()
