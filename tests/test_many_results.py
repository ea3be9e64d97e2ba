"""Tasks with results, and those that fail, are settled together, each as it ended."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.errors import NotFound, TaskBuried
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import Delivery
from agentbus.queues.retry import Backoff
from tests.conftest import Connect
from tests.servers import ask

SOON = Backoff(first=0.001, longest=0.001)
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


def test_what_failed_together_is_retried_together_with_the_number_of_its_attempt(
    bus: agentbus.Bus,
) -> None:
    queue, got = bus.queue("mail"), []
    ids = queue.publish_many(range(200))

    def handler(delivery: Delivery) -> int:
        got.append((delivery.payload, delivery.attempt))
        if delivery.attempt < 3:
            raise ValueError(f"{delivery.payload} is not ready")
        return delivery.attempt

    worker = bus.subscribe("mail", handler, drain=True, backoff=SOON)
    assert worker.run() == 200

    assert sorted(got) == [(number, attempt) for number in range(200) for attempt in (1, 2, 3)]
    assert [queue.result(task) for task in ids] == [3] * 200
    runs = bus.task(ids[7]).runs
    assert [(run.attempt, run.outcome) for run in runs] == [
        (1, "failed"),
        (2, "failed"),
        (3, "done"),
    ]
    assert runs[0].error == "ValueError: 7 is not ready"
    stats = bus.scope.keys.stats("mail")
    assert ask(bus, "HMGET", stats, "processed", "retried") == [b"200", b"400"]
    assert ask(bus, "KEYS", f"{bus.project}:attempts:mail:*") == []


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_last_attempt_whose_worker_died_before_it_began_is_made_again(
    bus: agentbus.Bus, mode: Any
) -> None:
    queue, got = bus.queue("mail"), []
    queue.publish(1)

    def fails(_delivery: Delivery) -> None:
        raise ValueError

    bus.subscribe("mail", fails, backoff=SOON, attempts=2).run_once()
    # when a worker takes it, and dies
    dead = QueueConsumer(bus.scope, "mail", "default", "dead")
    while not bus._run("work", dead.take_retries("normal", 10))[0]:
        pass

    def handler(delivery: Delivery) -> None:
        got.append((delivery.payload, delivery.attempt))

    bus.subscribe("mail", handler, attempts=2, visibility=0.001, drain=True, **mode).run()

    assert got == [(1, 2)]
    assert queue.dead_letters() == []


def test_an_attempt_after_a_failure_counts_if_its_worker_dies(bus: agentbus.Bus) -> None:
    queue, got = bus.queue("mail"), []
    task = queue.publish(1)

    def fails(_delivery: Delivery) -> None:
        raise ValueError

    bus.subscribe("mail", fails, backoff=SOON).run_once()
    dead = QueueConsumer(bus.scope, "mail", "default", "dead")
    while not bus._run("work", dead.take_retries("normal", 10))[0]:
        pass

    bus.subscribe("mail", lambda one: got.append(one.attempt), visibility=0.001, drain=True).run()

    assert got == [3]
    assert [run.outcome for run in bus.task(task).runs] == ["failed", "lost", "done"]
