"""A task that asks for it is announced on the channel when it ends: once, as its end is recorded."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

import agentbus
from agentbus import Task
from agentbus.core.keys import Keys
from agentbus.errors import InvalidPayload
from agentbus.store.steps import LinkDown, Step
from tests.conftest import Connect
from tests.servers import Shell, ask


def fails(_delivery: Any) -> None:
    raise ValueError("no such address\nsecond line")


def notices(bus: agentbus.Bus) -> list[tuple[str | None, dict[str, str]]]:
    """Return the event and the fields of each notice about tasks."""
    found = bus.overhear(last=100, topic="tasks")
    return [(said.event, dict(said.details or {})) for said in found]


def test_a_task_that_asks_for_it_is_announced_when_it_is_done(connect: Connect) -> None:
    publisher, worker = connect("ada"), connect("bob")
    task_id = publisher.queue("mail").publish("x", notify=True)
    publisher.queue("mail").publish("silent")

    worker.subscribe("mail", lambda _delivery: None, drain=True).run()

    (said,) = publisher.overhear(topic="tasks")
    assert (said.agent_id, said.event) == ("bob", "done")
    assert said.text == f"task {task_id} of mail done"
    assert said.details == {"task": task_id, "queue": "mail", "group": "default"}
    assert "bob" in [one.agent_id for one in publisher.agents()]
    assert [one.topic for one in publisher.topics()] == ["tasks"]


def test_a_buried_task_is_announced_with_the_error(bus: agentbus.Bus) -> None:
    task_id = bus.queue("mail").publish(Task("x", notify=True))

    bus.subscribe("mail", fails, attempts=1, drain=True).run()

    (said,) = bus.overhear(topic="tasks")
    assert said.text == f"task {task_id} of mail dead: ValueError: no such address"
    about = {"task": task_id, "queue": "mail", "group": "default"}
    assert (said.event, said.details) == (
        "dead",
        {**about, "error": "ValueError: no such address\nsecond line"},
    )


def test_an_attempt_that_is_retried_is_no_end(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x", notify=True)
    (first,) = bus.queue("mail").fetch()

    first.retry()
    assert notices(bus) == []
    (second,) = bus.queue("mail").fetch()
    second.ack()

    assert [event for event, _ in notices(bus)] == ["done"]


def test_each_group_announces_the_end_of_its_own(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x", notify=True)

    for group in ("one", "two"):
        bus.subscribe("mail", lambda _delivery: None, group=group, drain=True).run()

    assert [details["group"] for _, details in notices(bus)] == ["one", "two"]


def test_whoever_lost_a_task_announces_nothing(connect: Connect) -> None:
    ada, bob = connect("ada"), connect("bob")
    ada.queue("mail").publish("x", notify=True)
    (mine,) = ada.queue("mail").fetch(visibility=0.001)
    (theirs,) = bob.queue("mail").fetch(visibility=0.001)

    assert not mine.ack()
    assert notices(ada) == []
    assert theirs.ack()

    assert len(notices(ada)) == 1


def test_a_settle_whose_answer_is_lost_announces_once(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x", notify=True)
    (delivery,) = bus.queue("mail").fetch()
    link, lost = bus.runner.link, []

    class Losing:
        name = link.name

        def execute(self, step: Step) -> Any:
            reply = link.execute(step)
            if not lost:
                lost.append(step)
                raise LinkDown("the answer was lost", sent=True)
            return reply

        def close(self) -> None:
            link.close()

    unreliable: Any = Losing()
    bus.runner.link = unreliable

    assert delivery.ack()
    assert len(notices(bus)) == 1


def test_a_dependent_that_is_buried_with_its_dependency_is_announced(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("x")
    second = queue.publish("y", after=first, notify=True)

    bus.subscribe("mail", fails, attempts=1, drain=True).run()

    ((event, details),) = notices(bus)
    assert (event, details["task"]) == ("dead", second)


@pytest.mark.parametrize("delay", [None, 60])
def test_a_cancelled_task_is_announced_by_the_agent_that_cancelled_it(
    connect: Connect, delay: float | None
) -> None:
    ada, bob = connect("ada"), connect("bob")
    task_id = ada.queue("mail").publish("x", delay=delay, notify=True)

    bob.cancel(task_id)

    (said,) = ada.overhear(topic="tasks")
    assert (said.agent_id, said.event) == ("bob", "cancelled")
    assert said.text == f"task {task_id} of mail cancelled: it was cancelled by bob"
    about = {"task": task_id, "queue": "mail", "group": "default"}
    assert said.details == {**about, "error": "it was cancelled by bob"}


def test_a_task_that_is_cancelled_while_it_runs_is_announced_when_it_has_stopped(
    bus: agentbus.Bus,
) -> None:
    before = []

    def handle(delivery: agentbus.Delivery) -> None:
        if delivery.payload == "y":
            return
        bus.cancel(delivery.id)
        before.extend(notices(bus))
        while not delivery.cancelled:
            threading.Event().wait(0.005)
        raise InterruptedError

    bus.queue("mail").publish("x", notify=True)
    bus.queue("mail").publish("y")

    worker = bus.subscribe("mail", handle, drain=True)

    assert worker.run() == 1
    assert (before, [event for event, _ in notices(bus)]) == ([], ["cancelled"])


def test_delayed_tasks_and_batches_are_announced_by_their_ids(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    delayed = queue.publish("x", delay=0, notify=True)
    ids = queue.publish_many(["a", "b"], notify=True)

    bus.subscribe("mail", lambda _batch: None, batch=True, drain=True).run()

    assert sorted(details["task"] for _, details in notices(bus)) == sorted([delayed, *ids])


def test_a_channel_that_cannot_be_written_does_not_prevent_the_end(bus: agentbus.Bus) -> None:
    ask(bus, "SET", Keys(bus.project).channel, "another program's")
    bus.queue("mail").publish("x", notify=True)
    (delivery,) = bus.queue("mail").fetch()

    assert delivery.ack()
    assert bus.queue("mail").remaining() == 0


def test_notify_is_true_or_nothing(bus: agentbus.Bus) -> None:
    with pytest.raises(InvalidPayload, match="notify is 'build'"):
        bus.queue("mail").publish("x", notify="build")  # type: ignore[arg-type]


async def test_an_asynchronous_bus_announces_the_end(abus: agentbus.AsyncBus) -> None:
    task_id = await abus.queue("mail").publish("x", notify=True)

    async def handle(_delivery: Any) -> None:
        return None

    await abus.subscribe("mail", handle, drain=True).run()

    assert [said.text async for said in abus.overhear(topic="tasks")] == [
        f"task {task_id} of mail done"
    ]


def test_the_shell_publishes_with_a_notice_and_hears_it(real_shell: Shell) -> None:
    task_id = real_shell.ok("publish", "mail", "x", "--notify").strip()
    drained = real_shell.run("work", "mail", "--drain", "--attempts", "1", "--", "false")
    assert drained.returncode == 8

    (said,) = real_shell.records("overhear", "--topic", "tasks")
    assert (said["event"], said["task"], said["queue"]) == ("dead", task_id, "mail")
    assert "exit 1" in json.dumps(said)
