"""A publisher much faster than the workers is refused at once, and all that was accepted is done."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import agentbus
from agentbus.errors import QueueFull
from agentbus.queues import janitor
from agentbus.queues.delivery import Delivery
from tests.conftest import Connect
from tests.servers import ask
from tests.tiers import on_one_store

BOUND = 1000
TIMES = 10
PATIENCE = 60.0


@on_one_store
def test_a_publisher_ten_times_faster_than_the_workers_is_refused_and_nothing_is_lost(
    bus: agentbus.Bus, connect: Connect
) -> None:
    # given workers that may do one task for each ten publications
    queue, may = bus.queue("mail", bound=BOUND), threading.Semaphore(0)
    done: list[int] = []

    def handler(delivery: Delivery) -> None:
        may.acquire()
        done.append(delivery.payload)

    workers = [connect(name).subscribe("mail", handler, prefetch=5) for name in ("a", "b")]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()

    # when it publishes on without waiting: were it made to wait for room, this would never end
    accepted, refused = [], []
    for number in range(3 * BOUND):
        try:
            queue.publish(number)
            accepted.append(number)
        except QueueFull as full:
            refused.append(full)
        if number % TIMES == 0:
            may.release()
    may.release(3 * BOUND)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(PATIENCE)
    bus.subscribe("mail", handler, drain=True).run()

    # then it was told, from the bound on, and whatever was accepted is done, once
    assert sorted(done) == accepted
    assert len(refused) > BOUND
    assert accepted[:BOUND] == list(range(BOUND))
    assert str(BOUND) in str(refused[0])
    assert refused[0].hint
    assert queue.dead_letters() == []


@on_one_store
def test_many_at_once_beyond_the_bound_are_refused_whole_batches_at_a_time(
    bus: agentbus.Bus,
) -> None:
    queue, accepted = bus.queue("mail", bound=BOUND), 0
    batches = [range(first, first + 300) for first in range(0, 10 * BOUND, 300)]
    got: list[int] = []

    def work(**options: Any) -> None:
        bus.subscribe("mail", lambda d: got.append(d.payload), **options).run()

    expected: list[int] = []
    for batch in batches:
        try:
            accepted += len(queue.publish_many(batch))
            expected += batch
        except QueueFull:
            # No room: the next batch may find some.
            work(count=50)
    work(drain=True)

    assert len(batches) * 300 > accepted > BOUND
    assert got == expected


@on_one_store
def test_the_bound_counts_what_is_not_done_and_not_what_stays_behind_it(bus: agentbus.Bus) -> None:
    # given a task that waits for a retry in an hour, and as many done tasks after it as the bound
    queue = bus.queue("mail", bound=20)
    queue.publish("later")
    (delivery,) = queue.fetch()
    delivery.retry(after=3600)

    # when tasks are published and done
    for number in range(150):
        queue.publish(number)
        (delivery,) = queue.fetch()
        delivery.ack()

    # then none was refused, and twenty that are not done are too many
    queue.publish_many(range(19))
    with pytest.raises(QueueFull, match="holds 20 unfinished tasks"):
        queue.publish("one more")


@on_one_store
def test_ten_times_the_bound_stay_behind_a_running_task_which_is_then_named(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail", bound=5)
    running = queue.publish("running")
    queue.fetch(count=1)
    for number in range(49):
        queue.publish(number)
        (delivery,) = queue.fetch(count=1)
        delivery.ack()

    with pytest.raises(QueueFull, match=rf"has not finished {running.partition('@')[0]}"):
        queue.publish("one more")


@on_one_store
def test_ten_times_the_bound_stay_for_an_archive_which_is_then_named(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=5)
    queue.publish(0)
    bus._run("keep", janitor.keep(bus.scope, "archive:a", "mail", "normal", "0-1"))
    for number in range(1, 50):
        (delivery,) = queue.fetch(count=1)
        delivery.ack()
        queue.publish(number)
    (delivery,) = queue.fetch(count=1)
    delivery.ack()

    with pytest.raises(QueueFull, match="keeps 50 tasks, because an archive with --hold") as caught:
        queue.publish("one more")

    assert "agentbus archive release" in str(caught.value.shell_hint)


def test_delayed_tasks_and_those_that_are_not_done_share_the_bound(bus: agentbus.Bus) -> None:
    # given a done task behind one that is not
    queue = bus.queue("mail", bound=4)
    queue.publish_many(["running", "done"])
    _, done = queue.fetch(count=2)
    done.ack()

    for _ in range(3):
        queue.publish("later", delay=3600)
    with pytest.raises(QueueFull, match="holds 4 unfinished tasks"):
        queue.publish("one more", delay=3600)


def test_the_slowest_group_counts(bus: agentbus.Bus) -> None:
    # given two groups, one of which has done nothing, where the server knows no lag
    queue = bus.queue("mail", bound=10)
    queue.publish_many(range(3))
    first = ask(bus, "XRANGE", bus.scope.keys.queue("mail"), "-", "+")[0][0]
    ask(bus, "XGROUP", "CREATE", bus.scope.keys.queue("mail"), "slow", first)
    for delivery in queue.fetch(count=10):
        delivery.ack()
    queue.publish_many(range(7))
    for delivery in queue.fetch(count=10):
        delivery.ack()

    queue.publish("tenth")
    with pytest.raises(QueueFull, match="the group 'slow'"):
        queue.publish("eleventh")
