"""Many quick tasks side by side: settled and taken in batches, each done once, and each answered for."""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus import Backoff, Delivery
from tests.tiers import on_one_store

NUMBER = 2500
MODES = ("threads", "coroutines")


class Seen:
    """Handlers that count the runs of each payload, and then act."""

    def __init__(self, act: Callable[[Any], object] = lambda _task: None) -> None:
        self.runs: collections.Counter[int] = collections.Counter()
        self._act = act
        self._lock = threading.Lock()

    def handler(self, mode: str) -> Callable[[Any], Any]:
        return self.plain if mode == "threads" else self.later

    def plain(self, task: Delivery) -> object:
        with self._lock:
            self.runs[task.payload] += 1
        return self._act(task)

    async def later(self, task: Delivery) -> object:
        return self.plain(task)


def left(bus: agentbus.Bus) -> tuple[int, int]:
    (found,) = bus.queue("mail").groups()
    return found.pending, bus.queue("mail").remaining()


@on_one_store
@pytest.mark.parametrize("mode", MODES)
def test_each_of_many_quick_tasks_is_done_once(bus: agentbus.Bus, mode: str) -> None:
    bus.queue("mail").publish_many(range(NUMBER))
    seen = Seen()

    worker = bus.subscribe("mail", seen.handler(mode), concurrency=8, drain=True)

    assert worker.run() == NUMBER
    assert seen.runs == dict.fromkeys(range(NUMBER), 1)
    assert left(bus) == (0, 0)
    (found,) = bus.stats("mail")
    assert (found.counters["processed"], found.counters.get("stale")) == (NUMBER, None)


@on_one_store
@pytest.mark.parametrize("mode", MODES)
def test_failures_and_results_among_quick_tasks_are_settled_as_others(
    bus: agentbus.Bus, mode: str
) -> None:
    def act(task: Delivery) -> object:
        if task.payload % 100 == 7 and task.attempt == 1:
            raise OSError("once")
        return task.payload if task.payload % 100 == 9 else None

    queue = bus.queue("mail")
    ids = queue.publish_many(range(NUMBER))
    seen = Seen(act)

    worker = bus.subscribe(
        *("mail", seen.handler(mode)), concurrency=8, drain=True, backoff=Backoff(0.01, 0.01)
    )

    assert worker.run() == NUMBER
    assert worker.failed == NUMBER // 100
    assert seen.runs == {number: 1 + (number % 100 == 7) for number in range(NUMBER)}
    assert [queue.result(ids[number]) for number in (9, NUMBER - 91)] == [9, NUMBER - 91]
    assert left(bus) == (0, 0)


@on_one_store
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_that_is_stopped_among_quick_tasks_gives_the_rest_back(
    bus: agentbus.Bus, mode: str
) -> None:
    def act(_task: Delivery) -> None:
        if seen.runs.total() == NUMBER // 2:
            worker.stop()

    bus.queue("mail").publish_many(range(NUMBER))
    seen = Seen(act)
    worker = bus.subscribe("mail", seen.handler(mode), concurrency=8)

    done = worker.run()

    assert done == seen.runs.total() < NUMBER
    assert left(bus) == (0, NUMBER - done)
    bus.subscribe("mail", seen.handler(mode), drain=True).run()
    assert seen.runs == dict.fromkeys(range(NUMBER), 1)


@on_one_store
async def test_handlers_that_never_wait_leave_the_loop_to_others(abus: agentbus.AsyncBus) -> None:
    await abus.queue("mail").publish_many(range(NUMBER))
    seen = Seen()
    turns = 0
    worker = abus.subscribe("mail", seen.later, concurrency=4, drain=True)
    running = asyncio.create_task(worker.run())

    while not running.done():
        turns += 1
        await asyncio.sleep(0)

    assert await running == NUMBER
    assert turns > NUMBER // 4


@on_one_store
@pytest.mark.parametrize("settled", [(), (3, 7), range(10)], ids=["none", "some", "all"])
def test_a_batch_is_acknowledged_but_for_what_its_handler_settled(
    bus: agentbus.Bus, settled: range
) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(10))
    seen: list[int] = []

    def handler(tasks: list[Delivery]) -> None:
        for task in tasks:
            seen.append(task.payload)
            if task.payload in settled:
                task.bury("broken")

    worker = bus.subscribe("mail", handler, batch=True, drain=True)

    assert worker.run() == 10 - len(settled)
    assert sorted(seen) == [*range(10)]
    assert sorted(letter.payload for letter in queue.dead_letters()) == [*settled]
    assert left(bus) == (0, 0)


@on_one_store
def test_two_workers_of_quick_tasks_take_turns_and_lose_or_repeat_none(bus: agentbus.Bus) -> None:
    # given tasks of two priorities for two workers, some of which fail once or have a result
    def act(task: Delivery) -> object:
        if task.payload % 1000 == 7 and task.attempt == 1:
            raise OSError("once")
        return task.payload if task.payload % 1000 == 9 else None

    queue, number = bus.queue("mail", bound=100_000), 20_000
    ids = queue.publish_many(range(number))
    queue.publish_many(agentbus.Task(one, priority="low") for one in range(number, number + 2000))
    seen = Seen(act)
    workers = [
        bus.subscribe("mail", seen.plain, drain=True, backoff=Backoff(0.01, 0.01)) for _ in range(2)
    ]

    # when both have drained the queue
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # then each was done once, beside its retry
    assert sum(worker.done for worker in workers) == number + 2000
    assert seen.runs == {one: 1 + (one % 1000 == 7) for one in range(number + 2000)}
    assert left(bus) == (0, 0)
    assert [queue.result(ids[one]) for one in (9, 1009)] == [9, 1009]
    (found,) = bus.stats("mail")
    assert (found.counters["processed"], found.counters.get("stale")) == (number + 2000, None)
