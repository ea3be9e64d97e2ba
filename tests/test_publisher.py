"""A task's entry names the agent that published it, however it was published."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.ids import PRIORITIES
from agentbus.queues.task import Task
from agentbus.retry import Bury
from tests.conftest import Connect
from tests.servers import ask

WAYS: dict[str, Callable[[agentbus.Bus], object]] = {
    "a payload": lambda bus: bus.queue("mail").publish(1),
    "with an envelope": lambda bus: bus.queue("mail").publish(1, key="k", source="billing"),
    "a task": lambda bus: bus.queue("mail").publish(Task(1)),
    "several": lambda bus: bus.queue("mail").publish_many([1]),
    "several in one envelope": lambda bus: bus.queue("mail").publish_many([1], tenant="acme"),
    "several tasks": lambda bus: bus.queue("mail").publish_many([Task(1, topic="t")]),
    "the oldest trimmed": lambda bus: bus.queue("mail", bound=1).publish_many(
        [0, 1], on_full="trim"
    ),
    "delayed": lambda bus: bus.queue("mail").publish(1, delay=0),
}


def publishers(bus: agentbus.Bus, project: str, queue: str = "mail") -> list[str | None]:
    """Return the agents that the entries of a queue name."""
    entries = ask(bus, "XRANGE", Keys(project).queue(queue), "-", "+")
    named = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
    return [one[b"agent_id"].decode() if b"agent_id" in one else None for one in named]


def drain(bus: agentbus.Bus, handler: Callable[[agentbus.Delivery], object]) -> None:
    with bus.subscribe("mail", handler, drain=True) as worker:
        worker.run()


@pytest.mark.parametrize("way", WAYS)
def test_an_entry_names_the_agent_that_published_it(
    connect: Connect, bus: agentbus.Bus, project: str, way: str
) -> None:
    WAYS[way](connect(agent="planner"))
    drain(bus, lambda delivery: delivery.payload)

    assert publishers(bus, project)[-1:] == ["planner"]


def test_a_task_that_a_handler_publishes_names_the_workers_agent(
    connect: Connect, project: str
) -> None:
    planner, builder = connect(agent="planner"), connect(agent="builder")
    planner.queue("mail").publish(1)
    drain(builder, lambda _: builder.queue("next").publish(2))

    assert publishers(planner, project, "next") == ["builder"]


def test_a_reply_names_the_agent_that_answers(connect: Connect, project: str) -> None:
    planner = connect(agent="planner")
    planner.queue("mail").publish(1, reply_to="answers")
    drain(connect(agent="builder"), lambda delivery: delivery.payload)

    assert publishers(planner, project, "answers") == ["builder"]


def test_a_replayed_dead_letter_keeps_its_publisher(
    connect: Connect, bus: agentbus.Bus, project: str
) -> None:
    def refuse(_: object) -> None:
        raise Bury("no")

    connect(agent="planner").queue("mail").publish(1)
    drain(bus, refuse)
    (letter,) = bus.queue("mail").dead_letters()
    bus.queue("mail").replay(letter.id)

    assert publishers(bus, project)[-1] == "planner"


def test_a_task_is_delivered_as_before(bus: agentbus.Bus) -> None:
    found: list[agentbus.Delivery] = []
    bus.queue("mail").publish({"n": 1})
    bus.queue("mail").publish({"n": 2}, source="billing")
    drain(bus, found.append)

    assert [(one.payload, one.source) for one in found] == [({"n": 1}, None), ({"n": 2}, "billing")]


def test_the_priorities_are_those_of_the_enumeration():
    assert tuple(agentbus.Priority) == PRIORITIES
