"""Handlers of every kind: plain, asynchronous, side by side, and in batches."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff

SOON = Backoff(first=0.01)
PATIENCE = 30.0


def drain(bus: agentbus.Bus, handler: Callable[..., Any], **options: Any) -> int:
    """Work the queue `mail` until nothing is left, and return how many tasks were done."""
    return bus.subscribe("mail", handler, drain=True, **{"backoff": SOON, **options}).run()


def background(worker: Any) -> threading.Thread:
    thread = threading.Thread(target=worker.run)
    thread.start()
    return thread


def test_a_batch_handler_gets_lists(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(100))
    batches: list[list[int]] = []

    drain(bus, lambda ds: batches.append([d.payload for d in ds]), batch=True)

    assert [payload for batch in batches for payload in batch] == list(range(100))
    assert max(map(len, batches)) > 1


def test_one_bad_task_of_a_batch_does_not_bury_its_neighbours(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(10))
    done: set[int] = set()

    def handler(deliveries: list[Delivery]) -> None:
        numbers = {delivery.payload for delivery in deliveries}
        if 5 in numbers:
            raise ValueError("five")
        done.update(numbers)

    drain(bus, handler, batch=True, attempts=3)

    assert done == set(range(10)) - {5}
    assert [letter.payload for letter in bus.queue("mail").dead_letters()] == [5]


def asynchronous(seen: list[Any]) -> dict[str, Any]:
    async def function(delivery: Any) -> None:
        await asyncio.sleep(0)
        seen.append(delivery)

    class Caller:
        async def __call__(self, delivery: Any) -> None:
            await function(delivery)

        async def method(self, delivery: Any) -> None:
            await function(delivery)

    return {
        "function": function,
        "callable object": Caller(),
        "method": Caller().method,
        "partial": functools.partial(function),
        "lambda": lambda delivery: Caller().method(delivery),
    }


@pytest.mark.parametrize("kind", asynchronous([]))
@pytest.mark.parametrize("options", [{}, {"concurrency": 4}, {"batch": True}], ids=str)
def test_asynchronous_handlers_are_awaited(
    bus: agentbus.Bus, kind: str, options: dict[str, Any]
) -> None:
    bus.queue("mail").publish_many(range(10))
    seen: list[Any] = []

    drain(bus, asynchronous(seen)[kind], attempts=1, **options)

    got = [d for item in seen for d in (item if options.get("batch") else [item])]
    assert sorted(delivery.payload for delivery in got) == list(range(10))


def test_threads_run_so_many_tasks_at_once(bus: agentbus.Bus) -> None:
    # given tasks that end only when four of them run together
    bus.queue("mail").publish_many(range(8))
    together = threading.Barrier(4)

    assert drain(bus, lambda _: together.wait(PATIENCE) and None, concurrency=4) == 8


def test_coroutines_run_so_many_tasks_at_once(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(8))
    running = most = 0

    async def handler(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    drain(bus, handler, concurrency=4)

    assert most == 4
