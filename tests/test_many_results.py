"""Tasks whose handler returns a value are acknowledged together, each with its result."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.errors import NotFound, TaskBuried
from agentbus.queues.delivery import Delivery
from tests.conftest import Connect
from tests.servers import ask

MODES: list[dict[str, Any]] = [{}, {"concurrency": 4}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_each_task_of_a_batch_has_its_own_result(bus: agentbus.Bus, mode: Any) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(600)) + queue.publish_many(range(600, 700), priority="high")

    bus.subscribe("mail", lambda one: one.payload * 2, drain=True, **mode).run()

    assert [queue.result(task) for task in ids] == [number * 2 for number in range(700)]
    assert ask(bus, "HGET", bus.scope.keys.stats("mail"), "processed") == b"700"


def test_a_result_that_cannot_be_kept_fails_its_task_alone_within_a_batch(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(20))

    def handler(delivery: Delivery) -> object:
        return object() if delivery.payload == 7 else delivery.payload

    bus.subscribe("mail", handler, drain=True, attempts=1).run()

    assert [queue.result(task) for task in ids if task != ids[7]] == [*range(7), *range(8, 20)]
    with pytest.raises(TaskBuried):
        queue.result(ids[7])


def test_a_task_that_another_worker_has_taken_over_keeps_no_result_of_this_one(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue, stream = bus.queue("mail"), bus.scope.keys.queue("mail")
    ids = queue.publish_many(range(20))
    lost = ids[5].partition("@")[0]

    def handler(delivery: Delivery) -> int:
        if delivery.payload == 5:
            ask(bus, "XCLAIM", stream, "default", "thief", 0, lost)
        return int(delivery.payload)

    worker = bus.subscribe("mail", handler, count=19)
    worker.run()

    assert queue.result(ids[4]) == 4
    with pytest.raises(NotFound):
        queue.result(ids[5])
    assert ask(bus, "XPENDING", stream, "default", lost, lost, 1)[0][1] == b"thief"


def test_what_waits_for_tasks_with_results_is_released(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish_many(range(3))
    bus.queue("next").publish("after", after=first)
    bus.subscribe("mail", lambda one: one.payload, drain=True).run()

    done: list[str] = []
    bus.subscribe("next", lambda one: done.append(one.payload), drain=True).run()

    assert done == ["after"]


def test_delayed_tasks_have_their_results_under_the_ids_of_their_publication(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    ids = [queue.publish(number, delay=0.001) for number in range(30)]
    bus.queue("next").publish("after", after=ids)

    worker = bus.subscribe("mail", lambda one: one.payload or None, count=30)
    worker.run()

    assert [queue.result(task) for task in ids] == [None, *range(1, 30)]
    done: list[str] = []
    bus.subscribe("next", lambda one: done.append(one.payload), drain=True).run()
    assert done == ["after"]
