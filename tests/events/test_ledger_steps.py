"""A step on a ledger and its effect commit together: exactly once, whichever attempt is killed."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import sqlalchemy as sa

import agentbus
from agentbus.errors import InvalidName, InvalidPayload
from agentbus.events import Ledger, LedgerSteps
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from tests.servers import Server, Shell
from tests.tiers import nightly

SOON = Backoff(first=0.01)


@pytest.fixture
def steps(ledger: Ledger) -> LedgerSteps:
    found = LedgerSteps(ledger)
    found.create()
    with ledger.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE charges (task TEXT)")
    return found


def charge(connection: sa.Connection, task: str) -> dict[str, Any]:
    connection.execute(sa.text("INSERT INTO charges VALUES (:task)"), {"task": task})
    return {"charged": task}


def charges(ledger: Ledger) -> list[str]:
    with ledger.transaction() as connection:
        return [*connection.execute(sa.text("SELECT task FROM charges ORDER BY task")).scalars()]


def test_a_step_is_done_once_over_all_attempts(
    bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps
) -> None:
    task, seen = bus.queue("orders").publish(1), []

    def handle(delivery: Delivery) -> None:
        seen.append(steps.step(delivery, "charge", charge, delivery.id))
        if delivery.attempt < 3:
            raise ValueError("again")

    bus.subscribe("orders", handle, drain=True, backoff=SOON).run()

    assert seen == [{"charged": task}] * 3
    assert charges(ledger) == [task]


def test_a_step_that_raises_leaves_neither_effect_nor_result(
    bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps
) -> None:
    bus.queue("orders").publish(1)

    def fails(connection: sa.Connection, delivery: Delivery) -> str:
        charge(connection, "lost")
        if delivery.attempt == 1:
            raise ValueError("after its effect")
        return "done"

    seen: list[str] = []
    bus.subscribe(
        *("orders", lambda one: seen.append(steps.step(one, "charge", fails, one))),
        drain=True,
        backoff=SOON,
    ).run()

    assert seen == ["done"]
    assert charges(ledger) == ["lost"]


def test_steps_of_other_names_and_tasks_are_others(
    bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps
) -> None:
    bus.queue("orders").publish_many([1, 2])

    def handle(delivery: Delivery) -> None:
        for name in ("a", "b"):
            steps.step(delivery, name, charge, f"{delivery.payload} {name}")

    bus.subscribe("orders", handle, drain=True).run()

    assert charges(ledger) == ["1 a", "1 b", "2 a", "2 b"]


def test_a_task_with_the_id_of_one_before_a_clear_has_its_own_steps(
    bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps
) -> None:
    def handle(delivery: Delivery) -> Any:
        return steps.step(delivery, "charge", charge, delivery.payload)

    ids = []
    for order in ("7", "8"):
        ids.append(bus.queue("orders").publish(order, delay=0))
        bus.subscribe("orders", handle, drain=True).run()
        assert bus.result(ids[-1]) == {"charged": order}
        bus.clear()

    assert ids == ["d1@orders"] * 2
    assert charges(ledger) == ["7", "8"]


def test_two_attempts_at_the_same_time_have_one_effect(
    bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps
) -> None:
    bus.queue("orders").publish(1)
    (delivery,) = bus.queue("orders").fetch()
    within, found = threading.Barrier(2), []

    def slow(connection: sa.Connection) -> str:
        charge(connection, "once")
        return "of the first"

    def run() -> None:
        within.wait(60)
        found.append(steps.step(delivery, "charge", slow))

    both = [threading.Thread(target=run) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)

    assert found == ["of the first"] * 2
    assert charges(ledger) == ["once"]


def test_what_is_no_name_or_result_is_refused(
    bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps
) -> None:
    bus.queue("orders").publish(1)
    (delivery,) = bus.queue("orders").fetch()

    with pytest.raises(InvalidName):
        steps.step(delivery, "a\nb", charge, "x")
    with pytest.raises(InvalidPayload):
        steps.step(delivery, "object", lambda connection: charge(connection, "x") and object())
    assert charges(ledger) == []


def test_old_steps_are_removed(bus: agentbus.Bus, ledger: Ledger, steps: LedgerSteps) -> None:
    bus.queue("orders").publish(1)
    (delivery,) = bus.queue("orders").fetch()
    steps.step(delivery, "charge", charge, "x")

    assert steps.clean() == 0
    assert steps.clean(seconds=-60) == 1


_KILLED = """
import os, signal, sys, agentbus, sqlalchemy as sa
from agentbus.events import Ledger, LedgerSteps

steps = LedgerSteps(Ledger(sa.create_engine(sys.argv[2])))
lives = int(sys.argv[3])

def survive():
    global lives
    lives -= 1
    if lives == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def charge(connection, task, name):
    connection.execute(sa.text("INSERT INTO charges VALUES (:task)"), {"task": f"{task} {name}"})
    survive()
    return name

with agentbus.connect(sys.argv[1], project="app") as bus:
    def handle(delivery):
        done = []
        for name in ("a", "b", "c"):
            done.append(steps.step(delivery, name, charge, delivery.id, name))
            survive()
        return done

    bus.subscribe("orders", handle, drain=True, attempts=1000, visibility=0.3).run()
"""


@pytest.mark.parametrize(
    ("database", "kills"),
    [("postgresql", 4), nightly("sqlite", 4), nightly("postgresql", 60), nightly("sqlite", 60)],
    indirect=["database"],
)
def test_a_process_that_is_killed_in_a_step_doubles_no_effect(
    own_server: Server,
    real_shell: Shell,
    database: str,
    ledger: Ledger,
    steps: LedgerSteps,
    kills: int,
) -> None:
    (real_shell.home / "killed.py").write_text(_KILLED)
    with agentbus.connect(own_server.url, project="app") as bus:
        tasks = [bus.queue("orders").publish(n) for n in range(max(2, kills // 4))]
        died = 0
        for kill in range(kills + 1):
            lives = 1 + kill % 7 if kill < kills else -1
            words = ["killed.py", own_server.url, database, str(lives)]
            ended = real_shell.python(*words, cwd=real_shell.home, timeout=120)
            assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
            died += ended.returncode == -signal.SIGKILL

        assert died > 0
        assert charges(ledger) == sorted(f"{task} {name}" for task in tasks for name in "abc")
        assert [bus.result(task) for task in tasks] == [["a", "b", "c"]] * len(tasks)
