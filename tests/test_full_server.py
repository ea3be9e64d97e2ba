"""A full server: workers go on, and a write that may have been done is not said to have been refused."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.consuming import Consumption
from agentbus.errors import BackendUnavailable, OutcomeUnknown
from agentbus.store import LinkDown
from tests.servers import Server


def answers_are_lost(bus: agentbus.Bus, server: Server, *, full_for: int) -> list[str]:
    """Lose the answer to the next request, when the server gets full for so many requests; returns each."""
    execute, seen = bus._link.execute, list[str]()

    def losing(step: Any) -> Any:
        seen.append(step.label)
        if len(seen) == full_for + 2:
            server.feed()
        reply = execute(step)
        if len(seen) == 1:
            server.starve()
            raise LinkDown("the answer was lost", sent=True)
        return reply

    bus._link.execute = losing  # type: ignore[method-assign]
    return seen


def test_a_write_whose_answer_was_lost_is_asked_about_until_the_server_has_room(
    own_server: Server, project: str
) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=60) as bus:
        queue = bus.queue("mail")
        queue.publish("first")
        seen = answers_are_lost(bus, own_server, full_for=3)

        queue.publish("second")

        assert len(seen) == 5
        assert [task.payload for task in queue.fetch(count=10)] == ["first", "second"]


def test_a_write_whose_answer_was_lost_is_not_said_to_be_refused_by_a_full_server(
    own_server: Server, project: str
) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=0.5) as bus:
        queue = bus.queue("mail")
        queue.publish("first")
        answers_are_lost(bus, own_server, full_for=1000)

        with pytest.raises(OutcomeUnknown):
            queue.publish("second")
        with pytest.raises(BackendUnavailable, match="is full"):
            queue.publish("third")


def test_a_full_server_tells_a_worker_what_it_holds_and_lets_it_take_more(
    own_server: Server, project: str
) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        consumer = Consumption(bus.scope, "mail", "default", "me")
        bus.queue("mail").publish_many(range(3))
        own_server.starve()

        # the group is made, and what was handed out by an answer that was lost is found
        bus._run("work", consumer.prepare())
        bus._run("work", consumer.take(2, 0.01))
        held = bus._run("work", consumer.own("normal", []))

        assert [task.payload for task in held] == [0, 1]


def test_work_that_another_program_may_ask_for_twice_is_done_on_a_full_server(
    own_server: Server, project: str
) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        stream = bus.scope.keys.queue("mail")
        for _ in range(2):
            own_server.ask("XADD", stream, "*", "task", "build", "work_item_id", "w1")
        own_server.starve()
        done: list[Any] = []

        bus.subscribe("mail", lambda task: done.append(task.payload["task"]), drain=True).run()

        assert done == ["build"]
