"""A task without a correlation id has its own id as one, wherever it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import agentbus
from agentbus.queues.delivery import Delivery
from agentbus.retry import Bury
from agentbus.tasks import Tasks
from tests.servers import ask

WAYS: dict[str, Callable[[agentbus.Bus], str]] = {
    "publish": lambda bus: bus.queue("mail").publish({"n": 1}),
    "with an envelope": lambda bus: bus.queue("mail").publish(1, source="billing"),
    "publish_many": lambda bus: bus.queue("mail").publish_many([1])[0],
    "delayed": lambda bus: bus.queue("mail").publish(1, delay=0.001),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_delivery_has_its_tasks_id_as_correlation(bus: agentbus.Bus, way: str) -> None:
    seen: list[Delivery] = []
    task = WAYS[way](bus)

    bus.subscribe("mail", seen.append, count=1).run()

    (delivery,) = seen
    assert (delivery.id, delivery.correlation_id, delivery.task.correlation_id) == (task,) * 3


@pytest.mark.parametrize("way", WAYS)
def test_a_shown_envelope_has_the_tasks_id_as_correlation(bus: agentbus.Bus, way: str) -> None:
    task = WAYS[way](bus)

    (entry,) = bus.queue("mail").inspect()

    assert entry.envelope["correlation_id"] == task
    assert bus.task(task).envelope["correlation_id"] == task


def test_a_typed_tasks_correlation_is_its_id(bus: agentbus.Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="mail")
    def send(to: str) -> None: ...

    sent = send.publish(bus, "ada")

    assert bus.task(sent.id).envelope["correlation_id"] == sent.id


def test_the_tasks_of_a_chain_have_the_first_tasks_id_as_correlation(bus: agentbus.Bus) -> None:
    def forward(delivery: Delivery) -> None:
        if delivery.payload < 3:
            bus.queue("mail").publish(delivery.payload + 1)

    first = bus.queue("mail").publish(1)
    bus.subscribe("mail", forward, drain=True).run()

    assert [entry.envelope["correlation_id"] for entry in bus.queue("mail").inspect()] == [
        first
    ] * 3


def test_a_dead_task_that_is_trimmed_keeps_its_correlation(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1)

    def bury(_delivery: Delivery) -> None:
        raise Bury("broken")

    bus.subscribe("mail", bury, drain=True).run()
    ask(bus, "XTRIM", bus.scope.keys.queue("mail"), "MAXLEN", 0)

    assert bus.task(task).envelope["correlation_id"] == task


def test_an_empty_correlation_of_another_program_counts_as_none(bus: agentbus.Bus) -> None:
    seen: list[Delivery] = []
    meta = ("payload", "1", "meta", '{"correlation_id":""}')
    ask(bus, "XADD", bus.scope.keys.queue("mail"), "*", *meta)

    bus.subscribe("mail", seen.append, count=1).run()

    assert seen[0].correlation_id == seen[0].id
