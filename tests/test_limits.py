"""Limits over all workers of a queue: how many tasks run at once, and how many start in a second."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import agentbus
from agentbus.core.errors import UsageError
from agentbus.queues.delivery import Delivery
from agentbus.queues.limits import QueueLimit
from agentbus.tasks.limits import Limits
from tests.servers import ask


class Running:
    """Counts how many handlers run at once, by key, and the most there ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.done: list[Any] = []

    def __call__(self, delivery: Delivery) -> None:
        payload: Any = delivery.payload
        key = payload[0]
        with self._lock:
            self.now[key] = self.now.get(key, 0) + 1
            self.most[key] = max(self.most.get(key, 0), self.now[key])
        # Long enough for another thread to start a task that should not run.
        threading.Event().wait(0.005)
        with self._lock:
            self.now[key] -= 1
            self.done.append(tuple(payload))


def publish(bus: agentbus.Bus, number: int, keys: str = "a") -> None:
    bus.queue("mail").publish_many(
        agentbus.Task([key, n], headers={"host": key}) for n in range(number) for key in keys
    )


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_tasks_run_at_once_than_the_limit_allows(
    bus: agentbus.Bus, concurrency: int
) -> None:
    publish(bus, 12)
    Limits(bus).set("mail", at_once=2)
    running = Running()

    assert bus.subscribe("mail", running, concurrency=concurrency, drain=True).run() == 12

    assert running.most["a"] <= 2
    assert sorted(running.done) == [("a", n) for n in range(12)]


def test_a_limit_by_key_lets_other_keys_run_and_none_starve(bus: agentbus.Bus) -> None:
    publish(bus, 6, "abc")
    Limits(bus).set("mail", at_once=1, by="headers.host")
    running = Running()

    assert bus.subscribe("mail", running, concurrency=4, drain=True).run() == 18

    assert running.most == {"a": 1, "b": 1, "c": 1}
    assert len(running.done) == 18


def test_a_key_at_its_limit_does_not_hold_up_those_behind_it(bus: agentbus.Bus) -> None:
    publish(bus, 5, "a")
    publish(bus, 1, "b")
    Limits(bus).set("mail", at_once=1, by="headers.host")
    queue = bus.queue("mail")

    (held,) = queue.fetch(count=1)
    (other,) = queue.fetch(count=1)

    assert (held.payload, other.payload) == (["a", 0], ["b", 0])
    assert queue.fetch(count=1) == []


def test_a_slot_is_free_when_its_task_is_settled(bus: agentbus.Bus) -> None:
    publish(bus, 3)
    Limits(bus).set("mail", at_once=1)
    queue, order = bus.queue("mail"), []

    for _ in range(3):
        (one,) = queue.fetch(count=2)
        order.append(one.payload)
        one.ack()

    assert order == [["a", 0], ["a", 1], ["a", 2]]
    keys = bus.scope.keys
    queue.fetch(count=1)
    assert ask(bus, "EXISTS", keys.slots("mail", "default")) == 0
    assert ask(bus, "EXISTS", keys.slot_waits("mail", "default")) == 0


def test_no_more_tasks_start_in_a_second_than_the_bucket_holds(bus: agentbus.Bus) -> None:
    publish(bus, 5)
    Limits(bus).set("mail", per_second=0.001, burst=2)
    queue = bus.queue("mail")

    assert len(queue.fetch(count=5)) == 2
    assert queue.fetch(count=5) == []


def test_a_queue_without_a_limit_has_no_key_of_limits(bus: agentbus.Bus) -> None:
    publish(bus, 2)
    bus.subscribe("mail", Running(), drain=True).run()

    assert not ask(bus, "KEYS", f"{bus.scope.keys.project}:limits:*")


def test_limits_are_listed_and_removed(bus: agentbus.Bus) -> None:
    limits = Limits(bus)
    assert limits.get("mail") is None
    limits.set("mail", at_once=3, per_second=10, by="ordering_key")

    assert limits.list() == {"mail": QueueLimit(3, 10.0, None, "ordering_key")}
    assert bus.paused() == []
    assert limits.remove("mail")
    assert not limits.remove("mail")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"at_once": 0},
        {"at_once": True},
        {"per_second": 0},
        {"at_once": 1, "burst": 2},
        {"at_once": 1, "by": "payload."},
        {"at_once": 1, "by": "nothing"},
    ],
)
def test_wrong_limits_are_refused(bus: agentbus.Bus, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Limits(bus).set("mail", **given)
