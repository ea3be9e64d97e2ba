"""Scripts that work, relay or consume end after their running tasks at SIGTERM and SIGINT."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import agentbus
from agentbus.core.signals import StopEvent, stopped_by_signals

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATIENCE = 60.0
HEAD = """
import asyncio, os, signal, sys, agentbus, agentbus.aio
url, project, fifo = sys.argv[1:]

def handle(delivery):
    with open(fifo, "w") as out:
        out.write("began")
    with open(fifo) as go_on:
        return go_on.read()

"""
WORK = """
with agentbus.connect(url, project=project, agent="w") as bus:
    bus.subscribe("mail")(handle)
    bus.work()
print("over")
"""
RUN = """
with agentbus.connect(url, project=project, agent="w") as bus:
    bus.subscribe("mail", handle).run()
print("over")
"""
ASYNC = """
async def main():
    async with agentbus.aio.connect(url, project=project, agent="w") as bus:
        bus.subscribe("mail")(handle)
        await bus.work()
asyncio.run(main())
print("over")
"""
LOOP = """
with agentbus.connect(url, project=project, agent="w") as bus:
    while True:
        bus.subscribe("mail", handle).run()
        open(fifo, "w").write("again")
"""


@pytest.fixture
def fifo(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def bus(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(real_url: str, project: str, fifo: pathlib.Path) -> Iterator[Start]:
    """Return a function that runs a script, whose handler tells by a pipe that it began, and waits."""
    started: list[subprocess.Popen[str]] = []

    def run(body: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HEAD + body, real_url, project, str(fifo)]
        one = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(one)
        return one

    yield run
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (WORK, signal.SIGTERM),
        (WORK, signal.SIGINT),
        (RUN, signal.SIGTERM),
        (RUN, signal.SIGINT),
        (ASYNC, signal.SIGTERM),
    ],
    ids=["work-TERM", "work-INT", "run-TERM", "run-INT", "async-TERM"],
)
def test_a_script_finishes_what_runs_and_goes_on_after_it(start, bus, fifo, body, number) -> None:
    task_id = bus.queue("mail").publish("x")
    script = start(body)
    assert fifo.read_text() == "began"

    script.send_signal(number)
    fifo.write_text("finished")

    out, err = script.communicate(timeout=PATIENCE)
    assert (script.returncode, out, err) == (0, "over\n", "")
    assert bus.result(task_id) == "finished"


def test_a_second_signal_ends_a_script_at_once(start, bus, fifo) -> None:
    bus.queue("mail").publish("x")
    script = start(WORK)
    assert fifo.read_text() == "began"

    script.send_signal(signal.SIGTERM)
    while script.poll() is None:
        script.send_signal(signal.SIGTERM)

    assert script.wait() == -signal.SIGTERM
    assert bus.queue("mail").remaining() == 1


def test_a_loop_of_runs_ends_at_the_second_signal_at_the_latest(start, bus, fifo) -> None:
    bus.queue("mail").publish_many(["x", "y"])
    script = start(LOOP)
    assert fifo.read_text() == "began"
    script.send_signal(signal.SIGINT)
    fifo.write_text("finished")
    assert fifo.read_text() == "again"
    assert fifo.read_text() == "began"

    script.send_signal(signal.SIGINT)
    fifo.write_text("finished")

    _, err = script.communicate(timeout=PATIENCE)
    assert script.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert bus.queue("mail").remaining() == 0


def test_the_old_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    with stopped_by_signals(lambda: None):
        inside = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not set(map(id, before)) & set(map(id, inside))


def test_a_handler_of_the_program_stays_in_force(bus) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        bus.queue("mail").publish("x")

        def handle(_delivery: agentbus.Delivery) -> str:
            signal.raise_signal(signal.SIGTERM)
            return "done"

        assert bus.subscribe("mail", handle, drain=True).run() == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_run_in_another_thread_leaves_the_handlers_alone(bus) -> None:
    bus.queue("mail").publish("x")
    seen: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def handle(_delivery: agentbus.Delivery) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=bus.subscribe("mail", handle, drain=True).run)
    thread.start()
    thread.join()

    assert seen == [before]


STRESS = """
import signal, sys, time
from agentbus.core.signals import StopEvent

event = StopEvent()
rounds = 0

def act(*_):
    event.set()

signal.signal(signal.SIGALRM, act)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
until = time.monotonic() + 0.5
while time.monotonic() < until:
    event.wait(0.0001)
    event.set()
    event._set = False
    rounds += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print("over")
"""


def test_an_event_may_be_set_by_a_signal_in_the_thread_that_waits_for_it() -> None:
    # A `threading.Event` in its place waits forever for its own lock.
    done = subprocess.run(
        [sys.executable, "-c", STRESS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_an_event_wakes_all_that_wait_for_it() -> None:
    event = StopEvent()
    assert not event.wait(0.001)
    threads = [threading.Thread(target=event.wait) for _ in range(9)]
    for thread in threads:
        thread.start()

    event.set()

    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert event.is_set()
    assert event.wait()
