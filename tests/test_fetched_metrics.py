"""What programs fetch and settle by hand is in the metrics, at no further round trip."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import agentbus
from agentbus.errors import BackendUnavailable
from agentbus.queues.ids import taker
from agentbus.store.steps import LinkDown, Step
from tests.conftest import Connect
from tests.servers import Server, Shell, ask


class Counting:
    """A link that counts its exchanges."""

    def __init__(self, link: Any) -> None:
        self.link, self.name = link, link.name
        self.exchanges = 0
        self.lost = 0

    def execute(self, step: Step) -> Any:
        self.exchanges += 1
        reply = self.link.execute(step)
        if self.lost:
            self.lost -= 1
            raise LinkDown("the answer was lost", sent=True)
        return reply

    def close(self) -> None:
        self.link.close()


def counting(bus: agentbus.Bus) -> Counting:
    link: Any = Counting(bus.runner.link)
    bus.runner.link = link
    return link


def later(bus: agentbus.Bus) -> None:
    """Let the time pass after which counts are written."""
    real = bus.scope.monotonic
    bus.scope.monotonic = lambda: real() + 2.0


def counts(bus: agentbus.Bus) -> dict[str, int]:
    """Return the counts of the one group that there is."""
    (found,) = bus.metrics()
    return dict(found.counts)


def test_what_a_program_settles_is_counted_as_a_workers_is(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(4))

    done, aside, buried, _ = queue.fetch()
    done.ack()
    aside.retry()
    buried.bury("broken")
    bus.close()

    (found,) = bus.metrics()
    assert found.counts == {"received": 4, "processed": 1, "failed": 2, "retried": 1, "dead": 1}
    assert (found.queue, found.group, found.workers) == ("mail", "default", 1)
    assert found.running is not None
    assert found.waiting is not None
    assert (found.running.count, found.waiting.count) == (3, 4)
    (stats,) = bus.stats()
    assert stats.counters["processed"] == 1


def test_the_name_says_that_a_program_counts_by_hand_and_sends_no_heartbeats(
    bus: agentbus.Bus,
) -> None:
    bus.queue("mail").publish(1)

    bus.take("mail")
    bus.close()

    (sample,) = bus.samples(since="1m")
    assert taker(sample.worker)


def test_a_task_that_was_lost_to_another_is_counted_as_stale(connect: Connect) -> None:
    ada, bob = connect("ada"), connect("bob")
    ada.queue("mail").publish(1)
    (mine,) = ada.queue("mail").fetch(visibility=0.0001)
    (theirs,) = bob.queue("mail").fetch(visibility=0.0001)

    assert not mine.ack()
    assert theirs.ack()
    ada.close()
    bob.close()

    found = counts(ada)
    assert (found["stale"], found["processed"], found["reclaimed"]) == (1, 1, 1)


def test_counts_are_written_with_a_settle_and_cost_no_round_trip(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(6))
    deliveries = queue.fetch()
    link = counting(bus)

    for delivery in deliveries[:3]:
        delivery.ack()
    before = link.exchanges
    later(bus)
    for delivery in deliveries[3:]:
        delivery.ack()

    assert (before, link.exchanges) == (3, 6)
    assert counts(bus)["processed"] == 3, "those before the settle that they were written with"


def test_counts_are_written_with_a_fetch_and_cost_no_round_trip(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    (delivery,) = queue.fetch()
    delivery.ack()
    link = counting(bus)

    queue.fetch()
    usual = link.exchanges
    later(bus)
    queue.fetch()

    assert link.exchanges == 2 * usual
    assert counts(bus)["processed"] == 1


def test_counts_whose_answer_is_lost_are_written_once(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(2))
    one, two = queue.fetch()
    one.ack()
    link = counting(bus)
    later(bus)

    link.lost = 1
    assert two.ack()
    bus.close()
    bus.close()

    assert counts(bus) == {"received": 2, "processed": 2}


def test_counts_survive_a_server_that_forgot_its_scripts(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(2))
    one, two = queue.fetch()
    one.ack()
    later(bus)

    ask(bus, "SCRIPT", "FLUSH")
    assert two.ack()
    bus.close()

    assert counts(bus) == {"received": 2, "processed": 2}


def test_a_bus_that_fetched_nothing_writes_nothing_at_its_end(bus: agentbus.Bus) -> None:
    assert bus.queue("mail").fetch() == []
    link = counting(bus)

    bus.close()

    assert link.exchanges == 0


def test_a_server_that_is_gone_does_not_keep_a_bus_from_closing(
    own_server: Server, project: str
) -> None:
    bus = agentbus.connect(own_server.url, project=project, agent="ada", deadline=1)
    queue = bus.queue("mail")
    queue.publish(1)
    (delivery,) = queue.fetch()
    own_server.kill()

    with pytest.raises(BackendUnavailable):
        delivery.ack()
    bus.close()


async def test_an_asynchronous_bus_counts_what_it_fetches(
    abus: agentbus.AsyncBus, connect: Connect
) -> None:
    queue = abus.queue("mail")
    await queue.publish_many(range(2))
    one, two = await queue.fetch()
    assert await one.ack()
    assert await two.retry()
    await abus.aclose()

    assert counts(connect()) == {"received": 2, "processed": 1, "failed": 1, "retried": 1}


def test_the_shell_shows_what_a_program_fetched(real_shell: Shell, real_url: str) -> None:
    project = real_shell.environment["AGENTBUS_PROJECT"]
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        bus.queue("mail").publish(1)
        for delivery in bus.queue("mail").fetch():
            delivery.ack()

    (found,) = real_shell.records("metrics")
    assert found["counts"]["processed"] == 1


def test_a_task_is_received_again_after_a_failed_attempt(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(3))

    def fails(_delivery: agentbus.Delivery) -> None:
        raise agentbus.Retry(after=0.001)

    bus.subscribe("mail", fails, attempts=3, drain=True).run()

    assert counts(bus) == {"received": 9, "failed": 9, "retried": 6, "dead": 3}


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_slow_run_among_quick_ones_is_counted_by_itself(bus: agentbus.Bus, kind: str) -> None:
    bus.queue("mail").publish_many(range(20))

    def runs(delivery: agentbus.Delivery) -> None:
        time.sleep(0.1 if delivery.payload == 10 else 0)

    async def awaits(delivery: agentbus.AsyncDelivery) -> None:
        await asyncio.sleep(0.1 if delivery.payload == 10 else 0)

    bus.subscribe("mail", runs if kind == "function" else awaits, drain=True).run()

    (found,) = bus.metrics()
    assert found.running is not None
    assert found.running.count == 20
    # By the mean of its batch, it would have taken a fraction of that, and its neighbours as long.
    assert found.running.p50 < 0.064 <= found.running.p99
