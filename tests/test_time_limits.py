"""An attempt that takes longer than the time limit of its task is stopped, and has failed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import agentbus
from agentbus import Tasks
from agentbus.core import context
from agentbus.retry import Backoff

PATIENCE = 60.0
SOON = Backoff(first=0.01)
THREADS: list[dict[str, Any]] = [{}, {"concurrency": 3}]


def stopped(delivery: agentbus.Delivery) -> None:
    """Wait until the delivery says that the handler should end."""
    ended = threading.Event()
    while not delivery.cancelled:
        ended.wait(0.005)


@pytest.mark.parametrize("options", THREADS, ids=str)
async def test_a_coroutine_is_cancelled_at_its_limit(
    abus: agentbus.aio.AsyncBus, options: dict[str, Any]
) -> None:
    interrupted: list[int] = []
    await abus.queue("mail").publish("slow", time_limit=0.05)
    await abus.queue("mail").publish("quick", time_limit=PATIENCE)

    async def handler(delivery: agentbus.AsyncDelivery) -> str:
        if delivery.payload == "slow":
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                interrupted.append(delivery.attempt)
        return "done"

    worker = abus.subscribe("mail", handler, drain=True, attempts=2, backoff=SOON, **options)
    await worker.run()

    assert interrupted == [1, 2]
    (letter,) = await abus.queue("mail").dead_letters()
    assert letter.error == "TimeoutError: the attempt took longer than 0.05 s"
    assert worker.done == 1


async def test_a_coroutine_that_ends_well_after_all_has_done_its_task(abus) -> None:
    async def handler(_delivery: agentbus.AsyncDelivery) -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "saved"
        raise AssertionError("it was not cancelled")

    task = await abus.queue("mail").publish(1, time_limit=0.05)
    await abus.subscribe("mail", handler, drain=True).run()

    assert await abus.result(task) == "saved"


async def test_a_timeout_of_the_handler_itself_keeps_its_error(abus) -> None:
    async def handler(_delivery: agentbus.AsyncDelivery) -> None:
        raise TimeoutError("the mail server is slow")

    await abus.queue("mail").publish(1, time_limit=PATIENCE)
    await abus.subscribe("mail", handler, drain=True, attempts=1).run()

    (letter,) = await abus.queue("mail").dead_letters()
    assert letter.error == "TimeoutError: the mail server is slow"


@pytest.mark.parametrize("options", [*THREADS, {"batch": True}], ids=str)
def test_a_thread_is_asked_to_stop_at_its_limit(bus: agentbus.Bus, options: dict[str, Any]) -> None:
    task = bus.queue("mail").publish(1, time_limit=0.05)

    def handler(work: Any) -> None:
        (delivery,) = work if isinstance(work, list) else [work]
        assert delivery.time_limit == 0.05
        stopped(delivery)
        raise ValueError("half done")

    bus.subscribe("mail", handler, drain=True, attempts=1, **options).run()

    assert bus.task(task).state == "dead"
    (letter,) = bus.queue("mail").dead_letters()
    assert letter.error == "ValueError: half done"


def test_a_thread_that_ends_well_after_its_limit_has_done_its_task(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish(1, time_limit=0.01)

    def handler(delivery: agentbus.Delivery) -> str:
        stopped(delivery)
        return "late"

    bus.subscribe("mail", handler, drain=True).run()

    assert bus.result(task) == "late"


def test_each_attempt_has_the_whole_limit(bus: agentbus.Bus) -> None:
    begun: list[bool] = []
    # Longer than a busy machine takes to begin.
    bus.queue("mail").publish(1, time_limit=0.5)

    def handler(delivery: agentbus.Delivery) -> None:
        begun.append(delivery.cancelled)
        stopped(delivery)
        raise ValueError("again")

    bus.subscribe("mail", handler, drain=True, attempts=3, backoff=SOON).run()

    assert begun == [False] * 3


def test_a_typed_task_has_a_timeout(bus: agentbus.Bus) -> None:
    tasks = Tasks()

    @tasks.task(queue="mail", timeout=0.05, attempts=1)
    async def send(to: str) -> None:
        await asyncio.sleep(PATIENCE)

    send.publish(bus, "ada")
    tasks.worker(bus, drain=True).run()

    (letter,) = bus.queue("mail").dead_letters()
    assert letter.error == "TimeoutError: the attempt took longer than 0.05 s"


def test_a_function_beside_coroutines_is_not_run_again_while_it_runs(bus: agentbus.Bus) -> None:
    tasks = Tasks()
    running, most = [0], [0]

    @tasks.task(queue="mail", backoff=SOON)
    async def check() -> None: ...

    @tasks.task(queue="mail", timeout=0.05, attempts=3, backoff=SOON)
    def send() -> int:
        delivery = context.current.get()
        running[0] += 1
        most[0] = max(most[0], running[0])
        stopped(delivery)
        running[0] -= 1
        if delivery.attempt == 1:
            raise ValueError("again")
        return delivery.attempt

    handle = send.publish(bus)
    tasks.worker(bus, drain=True, concurrency=4).run()

    assert handle.result() == 2
    assert most == [1]
