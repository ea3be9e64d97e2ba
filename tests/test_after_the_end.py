"""When and where a task ran: while it runs, and after it has ended."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

import agentbus
from agentbus.queues.policy import Policies
from agentbus.store.steps import Command, one_step
from tests.conftest import Connect
from tests.servers import Shell
from tests.tiers import on_one_store


def work(bus: agentbus.Bus, handler: Any = lambda _: None, **options: Any) -> str:
    """Do all tasks of the queue; return the worker's name."""
    with bus.subscribe("mail", handler, drain=True, **options) as worker:
        worker.run()
        name: str = worker.name
        return name


def test_a_done_task_says_when_it_ended_and_who_ran_it(bus: agentbus.Bus) -> None:
    tasks = bus.queue("mail").publish_many(range(3))
    worker = work(bus, lambda _: time.sleep(0.01))

    for task in tasks:
        state = bus.task(task)
        assert (state.state, state.attempts, state.worker) == ("done", 1, worker)
        assert state.host == socket.gethostname()
        assert state.finished is not None
        assert state.took is not None
        assert state.took >= 0.01
        assert abs(state.finished - time.time()) < 60
        (run,) = state.runs
        assert (run.outcome, run.agent_id) == ("done", "ada")


def test_a_task_that_failed_once_says_how_its_last_attempt_ended(bus: agentbus.Bus) -> None:
    def handler(delivery: agentbus.Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("no mailbox")

    task = bus.queue("mail").publish(1)
    worker = work(bus, handler, backoff=agentbus.Backoff(0.0, 0.0))

    state = bus.task(task)
    assert [run.outcome for run in state.runs] == ["failed", "done"]
    assert (state.worker, state.finished is not None) == (worker, True)


def test_a_delayed_task_is_found_in_the_log_by_its_id(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1, delay=0.001)
    worker = work(bus)

    assert bus.task(task).worker == worker


def test_a_task_is_found_in_the_log_behind_thousands_of_others(bus: agentbus.Bus) -> None:
    log = bus.scope.keys.attempt_log
    task = bus.queue("mail").publish(1)
    filler = one_step(Command("XADD", log, "*", "ids", "1-1", "more", ""))
    for _ in range(1500):
        bus.runner.run(filler)
    worker = work(bus)

    assert bus.task(task).worker == worker


def test_without_a_log_a_done_task_is_done_all_the_same(connect: Connect) -> None:
    bus = connect()
    bus.runner._policies = Policies({"*": {"record_attempts": 0}}, "test")
    task = bus.queue("mail").publish(1)
    work(bus)

    state = bus.task(task)
    assert (state.state, state.attempts) == ("done", 1)
    assert (state.finished, state.worker, state.runs) == (None, None, ())


def test_what_another_program_wrote_into_the_log_is_passed_over(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)
    entry = task.partition("@")[0]
    strange = (("ids", entry), ("ids", entry, "more", "x"), ("more", f'"{task}"'))
    for fields in strange:
        bus.runner.run(one_step(Command("XADD", bus.scope.keys.attempt_log, "*", *fields)))
    worker = work(bus)

    assert bus.task(task).worker == worker


@on_one_store
def test_a_running_task_says_since_when_and_who_asked_it_to_stop(
    bus: agentbus.Bus, connect: Connect
) -> None:
    begun, over = threading.Event(), threading.Event()

    def handler(delivery: agentbus.Delivery) -> None:
        begun.set()
        over.wait(60)

    task = bus.queue("mail").publish(1)
    with connect().subscribe("mail", handler) as worker:
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            assert begun.wait(30)
            until = time.monotonic() + 30
            while (state := bus.task(task)).began is None:
                assert time.monotonic() < until
            assert state.began is not None
            assert state.took is not None
            assert 0.9 < state.took < 60
            assert (state.state, state.finished, state.worker) == ("running", None, worker.name)
            (listed,) = bus.workers()
            assert [*listed.began] == [task]
            assert listed.running_for is not None
            assert bus.task(task).stop_asked is None

            bus.cancel(task)

            asked = bus.task(task).stop_asked
            assert asked is not None
            assert asked.agent_id == "ada"
            assert bus.queue("mail").inspect()[0].stop_asked == asked
        finally:
            over.set()
            worker.stop()
            running.join()
    assert bus.task(task).stop_asked is None


def test_task_show_and_result_say_when_a_task_ended(
    real_shell: Shell, real_url: str, project: str
) -> None:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        task = bus.queue("mail").publish(1)
        worker = work(bus, lambda _: "sent")
    shown = real_shell.ok("task", "show", task)
    (state,) = real_shell.records("task", "show", task)
    (result,) = real_shell.records("result", task)

    assert "\nfinished  20" in shown
    assert f"\nworker    {worker}" in shown
    for record in (state, result):
        assert record["finished"] >= record["began"] > "20"
        assert (record["worker"], record["host"]) == (worker, socket.gethostname())
        assert (record["attempts"], record["took_ms"] > 0) == (1, True)
    assert result["result"] == "sent"


@pytest.mark.parametrize("count", [1, 4000])
def test_the_log_keeps_fewer_entries_if_they_have_many_attempts(
    bus: agentbus.Bus, count: int
) -> None:
    bus.runner._policies = Policies({"*": {"record_attempts": 1000}}, "test")
    key = bus.scope.keys.attempt_log
    for _ in range(1000):
        bus.runner.run(one_step(Command("XADD", key, "*", "of", "another")))
    bus.queue("mail").publish_many(range(count))
    work(bus)

    kept = bus.runner.run(one_step(Command("XLEN", key)))
    # Whole nodes of the stream are trimmed, of 100 entries.
    assert kept > 900 if count == 1 else kept <= 300
