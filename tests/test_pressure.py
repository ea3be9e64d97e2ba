"""A publisher much faster than the workers is refused at once, and all that was accepted is done."""

from __future__ import annotations

import threading
from typing import Any

import agentbus
from agentbus.errors import QueueFull
from agentbus.queues.delivery import Delivery
from tests.conftest import Connect
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
