"""A full server: workers go on."""

from __future__ import annotations

from typing import Any

import agentbus
from agentbus.consuming import Consumption
from tests.servers import Server


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
