"""What a worker received is what it settled, gave back, or still holds."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

import agentbus
from agentbus import Delivery, Retry
from tests.conftest import Connect
from tests.servers import ask

ENDED = ("processed", "retried", "dead", "stale", "duplicates", "cancelled", "released")


def counts(bus: agentbus.Bus) -> Counter[str]:
    """Return the counts of all workers together."""
    found: Counter[str] = Counter()
    for one in bus.metrics():
        found.update(one.counts)
    return found


def publish_expired(bus: agentbus.Bus, *payloads: str) -> None:
    """Publish tasks as two minutes ago, which were to expire after one."""
    at = round((time.time() - 120) * 1000)
    for number, payload in enumerate(payloads):
        fields = ("payload", f'"{payload}"', "meta", '{"expires":60}')
        ask(bus, "XADD", bus.scope.keys.queue("mail", "normal"), f"{at}-{number}", *fields)


def held(bus: agentbus.Bus) -> int:
    """Return how many tasks the workers hold, by their counts."""
    found = counts(bus)
    return found["received"] - sum(found[event] for event in ENDED)


def test_a_task_is_received_as_often_as_it_is_taken(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(5))

    def fail_first(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise Retry("busy", after=0)

    with bus.subscribe("mail", fail_first, drain=True) as worker:
        worker.run()

    found = counts(bus)
    assert (found["received"], found["retried"], found["processed"]) == (10, 5, 5)


def test_tasks_that_a_worker_gives_back_when_it_ends_are_not_held(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(300))

    for concurrency in (1, 4):
        with bus.subscribe("mail", lambda _: worker.stop(), concurrency=concurrency) as worker:
            worker.run()

    found = counts(bus)
    assert found["received"] > found["processed"]
    assert found["released"] == found["received"] - found["processed"]


def test_tasks_that_wait_for_their_ordering_key_are_not_held(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for number in range(6):
        queue.publish(number, ordering_key="ada")

    def fail_once(delivery: Delivery) -> None:
        if delivery.payload == 0 and delivery.attempt == 1:
            raise Retry("busy", after=0.01)

    for options in ({}, {"concurrency": 4}):
        with bus.subscribe("mail", fail_once, drain=True, group=str(options), **options) as worker:
            worker.run()

    assert counts(bus)["processed"] == 12
    assert held(bus) == 0


def test_tasks_that_are_fetched_again_or_given_back_are_not_held(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(2))
    first, second = queue.fetch()
    first.retry(after=0)
    second.ack()
    (again,) = queue.fetch()
    again.ack()
    bus.close()

    later = connect()
    found = counts(later)
    assert (found["received"], found["retried"], found["processed"]) == (3, 1, 2)
    assert held(later) == 0


def test_tasks_that_a_fetch_buries_without_a_run_are_counted_as_dead(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue = bus.queue("mail")
    publish_expired(bus, "too late")
    ask(bus, "XADD", f"{bus.project}:q:mail", "*", "payload", "{")
    queue.publish("in time")
    (delivery,) = queue.fetch()
    delivery.ack()
    bus.close()

    found = counts(connect())
    assert (found["received"], found["dead"], found["processed"], found["failed"]) == (3, 2, 1, 0)


def test_a_task_taken_by_hand_that_is_not_run_again_is_buried_once(
    bus: agentbus.Bus, connect: Connect
) -> None:
    publish_expired(bus, "too late")
    bus.queue("mail").publish("in time")
    task = bus.take("mail")
    bus.settle(task.id, task.token)
    bus.close()

    found = counts(connect())
    assert (found["dead"], found["failed"], found["processed"]) == (1, 0, 1)


@pytest.mark.parametrize("mode", [{}, {"concurrency": 3}, {"batch": True}], ids=str)
def test_an_expired_task_does_not_count_as_a_failed_run(
    bus: agentbus.Bus, mode: dict[str, Any]
) -> None:
    publish_expired(bus, "old")

    worker = bus.subscribe("mail", print, drain=True, **mode)
    worker.run()

    assert worker.failed == 0
    assert counts(bus) == {"received": 1, "dead": 1}


@pytest.mark.parametrize("mode", [{}, {"concurrency": 3}, {"batch": True}], ids=str)
def test_an_expired_task_has_no_run_time(bus: agentbus.Bus, mode: dict[str, Any]) -> None:
    publish_expired(bus, "old", "older")
    bus.queue("mail").publish("new")

    bus.subscribe("mail", print, drain=True, **mode).run()

    found = bus.metrics()[0]
    assert (found.counts["dead"], found.running.count) == (2, 1)
