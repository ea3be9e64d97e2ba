"""A group that was destroyed is made again where it was: nothing is lost, and little runs twice."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import UsageError
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import Delivery
from tests.servers import ask


def destroy(bus: agentbus.Bus) -> None:
    """Remove the group as another program would."""
    assert ask(bus, "XGROUP", "DESTROY", Keys(bus.project).queue("mail"), "default") == 1


def payloads(bus: agentbus.Bus) -> list[Any]:
    """Do all that is to be done, and return the payloads."""
    seen: list[Any] = []
    bus.subscribe("mail", lambda delivery: seen.append(delivery.payload), drain=True).run()
    return seen


def test_what_was_done_before_is_not_done_again(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(10))
    assert payloads(bus) == list(range(10))

    destroy(bus)
    queue.publish_many([10, 11])

    assert payloads(bus) == [10, 11]


def test_what_was_pending_is_delivered_again(bus: agentbus.Bus) -> None:
    # given tasks of which one is in somebody's hands, and those after it are done
    queue = bus.queue("mail")
    queue.publish_many(range(5))
    first, second, *rest = queue.fetch()
    for delivery in (first, *rest):
        delivery.ack()
    bus._run("record", QueueConsumer(bus.scope, "mail", "default", "me").record_positions())

    destroy(bus)

    assert payloads(bus) == [1, 2, 3, 4]
    assert not second.ack()


def test_a_group_that_nobody_noted_begins_at_the_oldest_task(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(3))
    ask(bus, "XGROUP", "CREATE", Keys(bus.project).queue("mail"), "default", "$")
    destroy(bus)

    assert payloads(bus) == [0, 1, 2]


def test_a_position_from_before_the_server_went_back_is_not_believed(bus: agentbus.Bus) -> None:
    # given a queue that is empty again, and a position far beyond its end
    queue = bus.queue("mail")
    queue.publish(0)
    assert payloads(bus) == [0]
    keys = Keys(bus.project)
    ask(bus, "DEL", keys.queue("mail"))
    ask(bus, "HSET", keys.positions("mail"), "default:normal", "9999999999999-0")

    queue.publish_many([1, 2])

    assert payloads(bus) == [1, 2]


@pytest.mark.parametrize("position", ["", "soon", "1-", "99999999999999999999-0", b"\xff"])
def test_a_position_that_is_no_id_is_not_believed(bus: agentbus.Bus, position: str | bytes) -> None:
    keys = Keys(bus.project)
    bus.queue("mail").publish_many([1, 2])
    ask(bus, "HSET", keys.positions("mail"), "default:normal", position)

    assert payloads(bus) == [1, 2]


def test_a_task_that_waits_for_its_next_attempt_outlives_its_group(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(["done", "failed"])

    def handler(delivery: Delivery) -> None:
        if delivery.payload == "failed":
            raise agentbus.Retry(after=300)

    worker = bus.subscribe("mail", handler, count=1)
    worker.run()
    while worker.done + worker.run_once() < 1:
        pass
    bus._run("record", QueueConsumer(bus.scope, "mail", "default", "me").record_positions())
    destroy(bus)

    assert "failed" in payloads(bus)


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 1e12, "soon", True])
def test_a_pause_that_cannot_be_is_refused(bus: agentbus.Bus, after: Any) -> None:
    bus.queue("mail").publish(1)
    (delivery,) = bus.queue("mail").fetch()

    with pytest.raises(UsageError, match="pause"):
        delivery.retry(after)
    with pytest.raises(UsageError, match="pause"):
        agentbus.Retry(after=after)

    assert delivery.ack()
