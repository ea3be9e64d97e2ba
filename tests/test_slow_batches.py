"""Slow tasks behind quick ones: a worker keeps none that others could run, and acknowledges those done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import agentbus
from agentbus.queues.delivery import Delivery
from tests.conftest import Connect
from tests.servers import Server, ask

MODES: list[dict[str, Any]] = [{}, {"concurrency": 4}]
PATIENCE = 30.0


def held(bus: agentbus.Bus, worker: Any) -> int:
    """Return how many tasks a worker holds, by the server."""
    found = ask(bus, "XINFO", "CONSUMERS", bus.scope.keys.queue("mail"), "default")
    return sum(one[3] for one in found if one[1] == worker.name.encode())


def eventually(found: Callable[[], bool]) -> None:
    """Block until a condition on the server is true."""
    until = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < until


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_worker_gives_back_the_tasks_behind_a_slow_one(bus: agentbus.Bus, mode: Any) -> None:
    # given quick tasks, after which a worker takes many at once, and then slow ones
    bus.queue("mail").publish_many([*range(1000), *["slow"] * 900])
    began, go_on = threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> None:
        if delivery.payload == "slow":
            began.set()
            go_on.wait(PATIENCE)

    worker = bus.subscribe("mail", handler, **mode)
    working = threading.Thread(target=worker.run)
    working.start()
    assert began.wait(PATIENCE)

    # then it soon holds only those that run
    try:
        eventually(lambda: held(bus, worker) == mode.get("concurrency", 1))
        assert ask(bus, "HGET", bus.scope.keys.stats("mail"), "processed") == b"1000"
    finally:
        worker.stop()
        go_on.set()
        working.join()


def test_what_was_given_back_is_no_attempt(bus: agentbus.Bus, connect: Connect) -> None:
    bus.queue("mail").publish_many([*range(1000), *["slow"] * 50])
    began, go_on, attempts = threading.Event(), threading.Event(), []

    def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.payload == "slow":
            began.set()
            go_on.wait(PATIENCE)

    worker = bus.subscribe("mail", handler)
    working = threading.Thread(target=worker.run)
    working.start()
    assert began.wait(PATIENCE)
    eventually(lambda: held(bus, worker) == 1)
    other = connect("eve").subscribe("mail", lambda one: attempts.append(one.attempt), count=49)
    other.run()
    worker.stop()
    go_on.set()
    working.join()

    assert attempts == [1] * 1050


def test_what_is_done_is_acknowledged_between_the_tasks_of_a_batch(bus: agentbus.Bus) -> None:
    # given tasks of which the later ones of a batch take long
    bus.queue("mail").publish_many(range(100))
    stream = bus.scope.keys.queue("mail")
    left = []

    def handler(delivery: Delivery) -> None:
        if delivery.payload > 70:
            left.append(len(ask(bus, "XPENDING", stream, "default", "-", "+", 200)))
            until = time.monotonic() + 0.25
            while time.monotonic() < until:
                pass

    worker = bus.subscribe("mail", handler, count=74)
    worker.run()

    # then with each of them, those before are
    assert left[1] < left[0]
    assert left[2] <= left[1]


_WORKER = """
import sys, time
import agentbus

with agentbus.connect(sys.argv[1], project=sys.argv[2], agent="w") as bus:
    def handler(delivery):
        print(delivery.payload, flush=True)
        if delivery.payload >= 100:
            time.sleep(0.05)
    bus.subscribe("mail", handler, visibility=5).run()
"""


def test_a_killed_worker_repeats_what_it_did_last(valkey: Server, project: str) -> None:
    with agentbus.connect(valkey.url, project=project) as bus:
        bus.queue("mail").publish_many(range(400))
        command = [sys.executable, "-c", _WORKER, valkey.url, project]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                if int(line) == 130:
                    break
            worker.kill()
        stats = ask(bus, "HGET", bus.scope.keys.stats("mail"), "processed")

    # Tasks of 50 ms are acknowledged every 200 ms, at most five together.
    assert int(stats) >= 124


@pytest.mark.slow
def test_slow_tasks_behind_quick_ones_are_shared_by_all_workers(
    valkey: Server, project: str
) -> None:
    with agentbus.connect(valkey.url, project=project) as bus:
        bus.queue("mail").publish_many(["quick"] * 400 + ["slow"] * 400)

    def work(number: int) -> int:
        with agentbus.connect(valkey.url, project=project, agent=f"w{number}") as own:

            def handler(delivery: Delivery) -> None:
                if delivery.payload == "slow":
                    time.sleep(0.5)

            return own.subscribe("mail", handler, drain=True).run()

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(work, range(4)))

    assert sum(done) == 800
    # 50 s are the ideal.
    assert time.monotonic() - began < 60


_FROZEN = """
import os, sys, time
import agentbus

with agentbus.connect(sys.argv[1], project=sys.argv[2], agent="w") as bus:
    def handler(delivery):
        os.write(1, b"%d\\n" % delivery.payload)
        if delivery.payload >= 100:
            time.sleep(0.02)
    how = {"concurrency": int(sys.argv[3])} if sys.argv[3] != "1" else {}
    bus.subscribe("mail", handler, visibility=0.6, prefetch=150, **how).run()
"""


@contextlib.contextmanager
def killing(worker: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process at the end, even if it is frozen."""
    try:
        yield
    finally:
        worker.kill()


def begun(worker: subprocess.Popen[bytes], last: int) -> list[int]:
    """Read what a worker says it begins, up to a task."""
    assert worker.stdout is not None
    found: list[int] = []
    while not found or found[-1] < last:
        found.append(int(worker.stdout.readline()))
    return found


def skip(worker: subprocess.Popen[bytes]) -> None:
    """Read everything that a worker has said."""
    assert worker.stdout is not None
    os.set_blocking(worker.stdout.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        os.read(worker.stdout.fileno(), 1 << 20)
    os.set_blocking(worker.stdout.fileno(), True)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_worker_that_was_frozen_begins_at_most_one_task_per_executor_that_it_has_lost(
    valkey: Server, project: str, concurrency: int
) -> None:
    with agentbus.connect(valkey.url, project=project) as bus:
        bus.queue("mail").publish_many(range(400))
        command = [sys.executable, "-c", _FROZEN, valkey.url, project, str(concurrency)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as worker,
            killing(worker),
        ):
            begun(worker, 105)
            worker.send_signal(signal.SIGSTOP)
            os.waitpid(worker.pid, os.WUNTRACED)
            skip(worker)
            # given that another worker has done what it held
            done: set[int] = set()
            bus.subscribe(
                "mail", lambda one: done.add(one.payload), drain=True, visibility=0.6
            ).run()

            # when it goes on
            worker.send_signal(signal.SIGCONT)
            bus.queue("mail").publish(1000)
            late = begun(worker, 1000)

    assert len(done) > 10
    assert len(done & set(late)) <= concurrency


def test_a_backoff_that_fails_in_the_heartbeat_ends_the_worker(bus: agentbus.Bus) -> None:
    # given a task that fails in a batch with a slow one, which the heartbeat settles
    bus.queue("mail").publish_many([*range(1000), "fails", "slow"])
    asked = threading.Event()

    class Broken:
        def after(self, attempt: int) -> float:
            asked.set()
            raise KeyError(attempt)

    def handler(delivery: Delivery) -> None:
        if delivery.payload == "fails":
            raise ValueError
        if delivery.payload == "slow":
            assert asked.wait(PATIENCE)

    with pytest.raises(KeyError):
        bus.subscribe("mail", handler, drain=True, backoff=Broken()).run()  # type: ignore[arg-type]
