"""Tasks with one ordering key are done in the order in which they were published."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from tests.conftest import Connect
from tests.servers import ask
from tests.tiers import nightly, on_one_store

SOON = Backoff(first=0.001)
PATIENCE = 60.0


def publish(bus: agentbus.Bus, *tasks: tuple[str, int]) -> None:
    queue = bus.queue("mail")
    queue.publish_many(agentbus.Task([key, number], ordering_key=key) for key, number in tasks)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_tasks_of_one_key_are_done_in_order(bus: agentbus.Bus, concurrency: int) -> None:
    publish(bus, *[(key, number) for number in range(8) for key in "ab"])
    done: dict[str, list[int]] = {"a": [], "b": []}

    def handler(delivery: Delivery) -> None:
        key, number = delivery.payload
        done[key].append(number)

    assert bus.subscribe("mail", handler, concurrency=concurrency, drain=True).run() == 16
    assert done == {"a": list(range(8)), "b": list(range(8))}


def test_tasks_of_one_key_never_run_side_by_side(bus: agentbus.Bus) -> None:
    publish(bus, *[("a", number) for number in range(6)])
    running = threading.Semaphore(1)
    overlaps: list[Any] = []

    def handler(delivery: Delivery) -> None:
        if not running.acquire(blocking=False):
            overlaps.append(delivery.payload)
            return
        running.release()

    bus.subscribe("mail", handler, concurrency=4, drain=True).run()

    assert overlaps == []


@pytest.mark.parametrize("concurrency", [1, 3])
def test_those_behind_a_task_that_failed_wait_for_its_next_attempt(
    bus: agentbus.Bus, concurrency: int
) -> None:
    publish(bus, ("a", 1), ("a", 2), ("b", 1))
    runs: list[Any] = []

    def handler(delivery: Delivery) -> None:
        runs.append(tuple(delivery.payload))
        if delivery.payload == ["a", 1] and delivery.attempt == 1:
            raise RuntimeError("not yet")

    bus.subscribe("mail", handler, concurrency=concurrency, drain=True, backoff=SOON).run()

    assert [number for key, number in runs if key == "a"] == [1, 1, 2]
    assert ("b", 1) in runs


def test_a_buried_task_lets_the_next_one_begin(bus: agentbus.Bus) -> None:
    publish(bus, ("a", 1), ("a", 2))
    done = []

    def handler(delivery: Delivery) -> None:
        if delivery.payload[1] == 1:
            raise agentbus.Bury("never")
        done.append(delivery.payload[1])

    bus.subscribe("mail", handler, drain=True).run()

    assert done == [2]


def test_two_workers_keep_the_order_between_them(connect: Connect) -> None:
    # given the first task of a key in the hands of one worker
    buses = [connect("ada"), connect("bob")]
    publish(buses[0], ("a", 1))
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def slow(delivery: Delivery) -> None:
        begun.set()
        assert go_on.wait(20)
        done.append(delivery.payload[1])

    first = buses[0].subscribe("mail", slow, count=1)
    thread = threading.Thread(target=first.run)
    thread.start()
    assert begun.wait(20)

    # when another worker takes the second one
    publish(buses[1], ("a", 2))
    second = buses[1].subscribe("mail", lambda delivery: done.append(delivery.payload[1]))
    assert second.run_once(wait=1.0) == 1

    # then it waits for the first
    assert done == []
    go_on.set()
    thread.join()
    buses[1].subscribe("mail", lambda delivery: done.append(delivery.payload[1]), drain=True).run()
    assert done == [1, 2]


def test_each_group_keeps_its_own_order(bus: agentbus.Bus) -> None:
    publish(bus, *[("a", number) for number in range(3)])
    done: dict[str, list[int]] = {"one": [], "two": []}

    for group, seen in done.items():
        # A group reads the oldest task first, however far another one has come.
        bus.subscribe(
            "mail",
            lambda delivery, seen=seen: seen.append(delivery.payload[1]),
            group=group,
            drain=True,
        ).run()

    assert done == {"one": [0, 1, 2], "two": [0, 1, 2]}


def test_nothing_is_left_in_the_index_when_all_is_done(bus: agentbus.Bus) -> None:
    publish(bus, ("a", 1), ("a", 2), ("b", 1))

    bus.subscribe("mail", lambda _: None, drain=True).run()

    assert ask(bus, "EXISTS", Keys(bus.project).order("mail", "normal")) == 0


def test_a_delayed_task_takes_its_place_when_it_falls_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish(["a", 2], ordering_key="a", delay=0.01)
    queue.publish(["a", 1], ordering_key="a")
    done: list[int] = []

    bus.subscribe("mail", lambda delivery: done.append(delivery.payload[1]), count=2).run()

    assert done == [1, 2]


@pytest.mark.parametrize("to", [None, "other"])
def test_replayed_tasks_keep_those_behind_them_with_their_key_waiting(
    bus: agentbus.Bus, to: str | None
) -> None:
    # given dead letters of a key, replayed, and a task that was published after that
    publish(bus, ("a", 1), ("a", 2))
    bus.subscribe("mail", lambda _: 1 / 0, attempts=1, drain=True).run()
    bus.queue("mail").replay_all(to=to)
    queue = bus.queue(to or "mail")
    queue.publish(["a", 3], ordering_key="a")

    for number in (1, 2, 3):
        (task,) = queue.fetch()
        assert task.payload == ["a", number]
        task.ack()

    assert ask(bus, "EXISTS", Keys(bus.project).order(queue.name, "normal")) == 0


def test_a_key_that_was_trimmed_away_keeps_nobody_waiting(bus: agentbus.Bus) -> None:
    # given the first task of a key taken, and then trimmed away by another program
    publish(bus, ("a", 1), ("a", 2))
    stream = Keys(bus.project).queue("mail")
    assert [task.payload for task in bus.queue("mail").fetch(count=1, visibility=0.1)] == [["a", 1]]
    ask(bus, "XTRIM", stream, "MAXLEN", 1)
    done: list[int] = []

    def handler(delivery: agentbus.Delivery) -> None:
        done.append(delivery.payload[1])

    bus.subscribe("mail", handler, drain=True, visibility=0.1).run()

    assert done == [2]


def test_a_fetched_task_keeps_the_next_one_with_its_key_waiting(connect: Connect) -> None:
    # given two tasks of one key, and the first in another consumer's hands
    ada, bob = connect("ada").queue("mail"), connect("bob").queue("mail")
    publish(connect(), ("k", 1), ("k", 2))
    (first,) = ada.fetch(count=1)

    # then nobody gets the second, until the first is acknowledged
    assert bob.fetch() == []
    assert ada.fetch() == []
    assert first.ack()
    (second,) = bob.fetch()
    assert (second.payload, second.attempt) == (["k", 2], 1)


def test_a_fetch_returns_one_task_of_a_key_and_those_of_other_keys_behind_it(
    bus: agentbus.Bus,
) -> None:
    publish(bus, *[("a", number) for number in range(5)], ("b", 0))
    queue = bus.queue("mail")

    # A batch of five brings tasks that must wait, and hides none that need not.
    first = queue.fetch(count=5)
    assert [delivery.payload for delivery in first] == [["a", 0]]
    assert [delivery.payload for delivery in queue.fetch(count=5)] == [["b", 0]]
    assert first[0].ack()
    assert [delivery.payload for delivery in queue.fetch(count=5)] == [["a", 1]]


def test_a_retry_of_a_fetched_task_keeps_the_next_one_with_its_key_waiting(
    bus: agentbus.Bus,
) -> None:
    publish(bus, ("k", 1), ("k", 2))
    queue = bus.queue("mail")
    (first,) = queue.fetch(count=1)

    assert first.retry(after=60)

    assert queue.fetch() == []
    assert queue.fetch(block=0.05) == []


def test_a_fetched_task_that_is_buried_lets_the_next_one_with_its_key_begin(
    bus: agentbus.Bus,
) -> None:
    publish(bus, ("k", 1), ("k", 2))
    queue = bus.queue("mail")
    (first,) = queue.fetch()

    assert first.bury("never")

    assert [delivery.payload for delivery in queue.fetch()] == [["k", 2]]


@on_one_store
@pytest.mark.parametrize("keys", [1, 200])
def test_fetched_tasks_leave_nothing_in_the_index(bus: agentbus.Bus, keys: int) -> None:
    publish(bus, *[(f"k{number % keys}", number) for number in range(200)])
    queue = bus.queue("mail")
    done: list[int] = []

    while deliveries := queue.fetch(count=100):
        for delivery in deliveries:
            assert delivery.ack()
            done.append(delivery.payload[1])

    assert done == list(range(200))
    assert ask(bus, "EXISTS", Keys(bus.project).order("mail", "normal")) == 0


async def test_an_asynchronous_bus_fetches_in_the_order_of_a_key(
    abus: agentbus.AsyncBus, connect: Connect
) -> None:
    publish(connect(), ("k", 1), ("k", 2), ("k", 3))
    queue = abus.queue("mail")

    (first,) = await queue.fetch()
    assert await queue.fetch() == []
    assert await first.ack("sent")
    assert await queue.result(first.id) == "sent"

    (second,) = await queue.fetch(block=60)
    assert await second.retry()
    (second,) = await queue.fetch()
    assert (second.payload, second.attempt) == (["k", 2], 2)
    assert await second.bury("never")

    (third,) = await queue.fetch()
    assert third.payload == ["k", 3]
    assert await third.ack()
    assert ask(connect(), "EXISTS", Keys(abus.project).order("mail", "normal")) == 0


@pytest.mark.parametrize(
    ("url", "number"),
    [("valkey", 300), nightly("valkey", 5000), nightly("memory", 1000)],
    indirect=["url"],
)
def test_workers_of_every_kind_keep_the_order_among_failures(connect: Connect, number: int) -> None:
    bus, keys = connect("publisher"), "abcdefg"
    publish(bus, *[(keys[one % 7], one) for one in range(number)])
    done: dict[str, list[int]] = {key: [] for key in keys}
    running: dict[str, threading.Lock] = {key: threading.Lock() for key in keys}
    overlaps: list[Any] = []

    def handler(delivery: Delivery) -> object:
        key, one = delivery.payload
        if not running[key].acquire(blocking=False):
            overlaps.append(one)
        try:
            if one % 5 == 0 and delivery.attempt == 1:
                raise ValueError(one)
            if one % 11 == 0 and delivery.attempt < 3:
                # It cannot be stored, which is a failure.
                return object()
            done[key].append(one)
            return one if one % 3 == 0 else None
        finally:
            running[key].release()

    async def in_a_coroutine(delivery: Delivery) -> object:
        return handler(delivery)

    workers = [
        connect("serial").subscribe("mail", handler, drain=True, backoff=SOON),
        connect("threads").subscribe("mail", handler, drain=True, backoff=SOON, concurrency=4),
        connect("loop").subscribe("mail", in_a_coroutine, drain=True, backoff=SOON),
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        so_far = -1
        # The in-memory server runs some fifteen of these tasks in a second.
        while thread.is_alive() and so_far < (so_far := sum(map(len, done.values()))):
            thread.join(PATIENCE)

    assert overlaps == []
    for at, key in enumerate(keys):
        assert done[key] == list(range(at, number, 7))
    assert bus.queue("mail").dead_letters() == []
    assert ask(bus, "EXISTS", bus.scope.keys.order("mail", "normal")) == 0


@on_one_store
def test_a_failure_lets_none_of_its_key_run_before_it(bus: agentbus.Bus) -> None:
    publish(bus, *[("a", one) for one in range(100)], *[("b", one) for one in range(100)])
    runs: list[Any] = []

    def handler(delivery: Delivery) -> None:
        runs.append(delivery.payload)
        if delivery.payload == ["a", 40] and delivery.attempt < 3:
            raise ValueError

    worker = bus.subscribe("mail", handler, drain=True, backoff=SOON)
    worker._loop._size = 256  # type: ignore[union-attr]
    worker.run()

    of_a = [one for key, one in runs if key == "a"]
    assert of_a == [*range(40), 40, 40, *range(40, 100)]
    assert [one for key, one in runs if key == "b"] == [*range(100)]
