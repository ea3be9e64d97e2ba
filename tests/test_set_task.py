"""A task that no worker has taken gets another priority, or another due time."""

from __future__ import annotations

import time

import pytest

import agentbus
from agentbus.core.clock import rfc3339
from agentbus.errors import NotFound, Refused, UsageError
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from tests.conftest import Connect
from tests.servers import Shell


def drained(bus: agentbus.Bus, queue: str = "mail") -> list[tuple[object, str]]:
    """Do what is ready, and return the payloads with their priorities."""
    found: list[tuple[object, str]] = []

    def handle(delivery: Delivery) -> None:
        found.append((delivery.payload, delivery.priority))

    bus.subscribe(queue, handle, drain=True).run()
    return found


def test_a_delayed_task_is_due_now(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish("a", delay=3600)
    assert bus.set_task(task, now=True).due <= time.time() + 60  # type: ignore[operator]

    assert drained(bus) == [("a", "normal")]


def test_a_delayed_task_is_due_at_another_time(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish("a", delay=1)
    later = round(time.time() + 3600, 3)

    state = bus.set_task(task, at=later, priority="high")

    assert (state.state, state.due, state.priority) == ("delayed", later, "high")
    assert drained(bus) == []
    bus.set_task(task, now=True)
    assert drained(bus) == [("a", "high")]


def test_a_dependent_gets_a_priority_and_a_due_time(bus: agentbus.Bus) -> None:
    first = bus.queue("first").publish(1)
    task = bus.queue("mail").publish("a", after=first, delay=3600)

    assert bus.set_task(task, priority="critical", now=True).state == "blocked"
    assert drained(bus) == []
    drained(bus, "first")

    assert drained(bus) == [("a", "critical")]


def test_a_dependent_may_be_due_later(bus: agentbus.Bus) -> None:
    first = bus.queue("first").publish(1)
    task = bus.queue("mail").publish("a", after=first)

    bus.set_task(task, at=time.time() + 3600)
    drained(bus, "first")

    assert bus.task(task).state == "delayed"


@pytest.mark.parametrize("delay", [None, 0.001])
def test_a_retry_begins_now(bus: agentbus.Bus, delay: float | None) -> None:
    task = bus.queue("mail").publish("a", delay=delay)

    def fail(_delivery: Delivery) -> None:
        raise ValueError("later")

    worker = bus.subscribe("mail", fail, backoff=Backoff(first=3600))
    while bus.task(task).state != "retrying":
        worker.run_once()

    bus.set_task(task, now=True)

    assert drained(bus) == [("a", "normal")]


def test_a_task_that_is_ready_taken_or_done_is_not_changed(
    bus: agentbus.Bus, connect: Connect
) -> None:
    task = bus.queue("mail").publish("a")
    for state in ("waiting", "running", "done"):
        with pytest.raises(Refused, match=f"is {state}: when it is due cannot be changed"):
            bus.set_task(task, now=True)
        if state == "waiting":
            (delivery,) = bus.queue("mail").fetch()
        else:
            delivery.ack()


def test_a_retry_keeps_its_priority(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish("a")
    (delivery,) = bus.queue("mail").fetch()
    delivery.retry(after=3600)

    with pytest.raises(Refused, match="is retrying: its priority cannot be changed"):
        bus.set_task(task, priority="high")


def test_wrong_changes_are_refused(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish("a", delay=3600)
    for wrong in ({}, {"at": 1.0, "now": True}, {"priority": "urgent"}, {"at": 1e15}):
        with pytest.raises(UsageError):
            bus.set_task(task, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        bus.set_task("d99@mail", now=True)


def test_the_shell_changes_a_task(real_shell: Shell) -> None:
    task = real_shell.ok("publish", "mail", "a", "--delay", "1h").strip()

    later = rfc3339(int(time.time()) + 7200)
    said = real_shell.ok("task", "set", task, "--at", later, "--priority", "low")
    assert said == f"{task} delayed, priority low, due {later.removesuffix('Z')}.000Z\n"
    (record,) = real_shell.records("task", "set", task, "--now")
    assert (record["task_id"], record["priority"]) == (task, "low")

    real_shell.ok("work", "mail", "--drain", "--", "true")
    assert real_shell.run("task", "set", task, "--now").returncode == 4
    assert real_shell.run("task", "set", task).returncode == 2
    assert real_shell.run("task", "set", task, "--now", "--at", later).returncode == 2
