"""Tasks side by side, on a blocking bus and on an asynchronous one, and handlers as decorators."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import agentbus
from agentbus.errors import UsageError
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff

PATIENCE = 20.0


def test_a_slow_task_does_not_keep_the_other_threads_idle(bus: agentbus.Bus) -> None:
    # given a task that ends only when all others have ended
    bus.queue("mail").publish_many(range(40))
    others = threading.Semaphore(0)

    def handler(delivery: Delivery) -> None:
        if delivery.payload == 0:
            for _ in range(39):
                assert others.acquire(timeout=PATIENCE)
        else:
            others.release()

    assert bus.subscribe("mail", handler, concurrency=2, drain=True).run() == 40


def test_a_slow_coroutine_does_not_keep_the_others_waiting(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(40))
    left = 39
    all_others = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        nonlocal left
        if delivery.payload == 0:
            await asyncio.wait_for(all_others.wait(), PATIENCE)
            return
        left -= 1
        if not left:
            all_others.set()

    assert bus.subscribe("mail", handler, concurrency=2, drain=True).run() == 40


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_retried_task_runs_while_others_run(bus: agentbus.Bus, concurrency: int) -> None:
    bus.queue("mail").publish_many(range(10))
    runs: list[Any] = []

    def handler(delivery: Delivery) -> None:
        runs.append(delivery.payload)
        if delivery.attempt == 1 and delivery.payload % 2:
            raise RuntimeError("again")

    worker = bus.subscribe(
        "mail", handler, concurrency=concurrency, drain=True, backoff=Backoff(first=0.001)
    )

    assert worker.run() == 10
    assert sorted(runs) == sorted([*range(10), 1, 3, 5, 7, 9])


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_an_asynchronous_bus_has_workers(abus: agentbus.AsyncBus, concurrency: int) -> None:
    queue = abus.queue("mail")
    await queue.publish_many(range(20))
    here = threading.get_ident()
    seen: list[Any] = []

    async def handler(delivery: Delivery) -> None:
        assert threading.get_ident() == here
        seen.append(delivery.payload)

    async with abus.subscribe("mail", handler, concurrency=concurrency, drain=True) as worker:
        assert await worker.run() == 20
    assert sorted(seen) == list(range(20))


async def test_a_plain_handler_does_not_block_the_loop(abus: agentbus.AsyncBus) -> None:
    await abus.queue("mail").publish("wait")
    begun, go_on = threading.Event(), threading.Event()

    def handler(_: Delivery) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    working = asyncio.ensure_future(abus.subscribe("mail", handler, drain=True).run())
    await asyncio.to_thread(begun.wait, PATIENCE)
    go_on.set()

    assert await working == 1


async def test_an_asynchronous_handler_awaits_what_becomes_of_its_task(
    abus: agentbus.AsyncBus,
) -> None:
    queue = abus.queue("mail")
    task_id = await queue.publish("work")
    answers = []

    async def handler(delivery: Delivery) -> None:
        answers.append(await delivery.ack("done"))
        answers.append(await delivery.ack("twice"))

    await abus.subscribe("mail", handler, drain=True).run()

    assert answers == [True, False]
    assert await queue.result(task_id) == "done"


async def test_a_cancelled_worker_finishes_what_runs(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail")
    task_id = await queue.publish("work")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_: Delivery) -> str:
        begun.set()
        await asyncio.wait_for(go_on.wait(), PATIENCE)
        return "finished"

    running = asyncio.ensure_future(abus.subscribe("mail", handler).run())
    await asyncio.wait_for(begun.wait(), PATIENCE)
    running.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await queue.result(task_id) == "finished"


def test_decorated_handlers_work_together(bus: agentbus.Bus) -> None:
    seen = []

    @bus.subscribe("mail")
    def mail(delivery: Delivery) -> None:
        seen.append(("mail", delivery.payload))

    @bus.subscribe("build", concurrency=2)
    def build(delivery: Delivery) -> None:
        seen.append(("build", delivery.payload))

    bus.queue("mail").publish(1)
    bus.queue("build").publish(2)

    assert bus.work(drain=True) == 2
    assert sorted(seen) == [("build", 2), ("mail", 1)]
    assert mail.__name__ == "mail"


def test_one_worker_that_fails_stops_the_others(bus: agentbus.Bus) -> None:
    # given a queue whose place is taken by something else
    bus.jot("x", "y")
    bus.subscribe("mail")(lambda _: None)
    bus.subscribe("build")(_interrupt)
    bus.queue("build").publish(1)

    with pytest.raises(KeyboardInterrupt):
        bus.work()


def _interrupt(_: Delivery) -> None:
    raise KeyboardInterrupt


def test_nothing_to_work_with_is_told(bus: agentbus.Bus) -> None:
    with pytest.raises(UsageError, match="no handler"):
        bus.work()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_what_a_handler_publishes_belongs_to_its_task(bus: agentbus.Bus, concurrency: int) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    task_id = bus.queue("first").publish(1, traceparent=trace)

    def handler(delivery: Delivery) -> None:
        bus.queue("second").publish(delivery.payload)
        bus.queue("second").publish_many([2, agentbus.Task(3, correlation_id="mine")])

    bus.subscribe("first", handler, concurrency=concurrency, drain=True).run()

    deliveries = sorted(bus.queue("second").fetch(), key=lambda one: one.payload)
    assert [one.causation_id for one in deliveries] == [task_id] * 3
    assert [one.correlation_id for one in deliveries] == [task_id, task_id, "mine"]
    assert all(one.traceparent.startswith("00-" + "a" * 32) for one in deliveries)
    assert len({one.traceparent for one in deliveries} | {trace}) == 4


def test_what_is_published_after_a_handler_belongs_to_nothing(bus: agentbus.Bus) -> None:
    bus.queue("first").publish(1)
    bus.subscribe("first", lambda _: None, drain=True).run()

    bus.queue("second").publish(2)

    (delivery,) = bus.queue("second").fetch()
    assert delivery.causation_id is None


def test_a_delivery_can_be_published_again_as_it_is(bus: agentbus.Bus) -> None:
    task = agentbus.Task(
        {"a": 1},
        key="k",
        priority="high",
        topic="t",
        headers={"h": "v"},
        tenant="acme",
        source="ci",
    )
    bus.queue("first").publish(task)
    (delivery,) = bus.queue("first").fetch()

    bus.queue("second").publish(delivery.task)

    (again,) = bus.queue("second").fetch()
    assert again.task == delivery.task
    assert (again.payload, again.priority, again.tenant) == ({"a": 1}, "high", "acme")


def test_a_stream_of_tasks_is_published_as_it_is_read(bus: agentbus.Bus) -> None:
    # given a stream without an end
    read = 0

    def numbers() -> Any:
        nonlocal read
        while True:
            read += 1
            yield read

    ids = bus.queue("mail").publish_stream(numbers())

    first = next(ids)
    ids.close()
    assert [one for one, _ in bus.queue("mail").peek(1)] == [first]
    # Two batches at most: the one that was sent, and the one that was made ready meanwhile.
    assert read <= 1001


def test_an_error_in_a_stream_is_told_after_what_was_accepted(bus: agentbus.Bus) -> None:
    def numbers() -> Any:
        yield from range(500)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        bus.queue("mail").publish_many(numbers())

    assert len(bus.queue("mail").peek(1000)) == 500


def test_tasks_of_several_kinds_go_in_one_call(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")

    ids = queue.publish_many(
        [
            1,
            agentbus.Task(2, key="same"),
            agentbus.Task(3, key="same"),
            agentbus.Task(4, priority="high"),
            5,
        ]
    )

    assert ids[1] == ids[2]
    assert [payload for _, payload in queue.peek()] == [4, 1, 2, 5]


@pytest.mark.parametrize("given", [2**70, 100_001, 0, -1, 2.0, True, "3"], ids=str)
def test_a_concurrency_that_no_worker_can_have_is_refused_before_a_thread_starts(
    bus: agentbus.Bus, given: Any
) -> None:
    before = threading.active_count()

    for subscribe in (bus.subscribe, bus.subscribe_many):
        with pytest.raises(UsageError, match=r"^the concurrency is "):
            subscribe("mail", print, concurrency=given)
    assert threading.active_count() == before


@pytest.mark.parametrize("option", ["attempts", "count", "prefetch"])
@pytest.mark.parametrize("given", [2**70, 0, True, "3"], ids=str)
def test_a_number_of_tasks_that_no_worker_can_have_is_refused(
    bus: agentbus.Bus, option: str, given: Any
) -> None:
    options: Any = {option: given}

    with pytest.raises(UsageError, match=rf"^the {option} is "):
        bus.subscribe("mail", print, **options)


def test_a_worker_whose_threads_the_system_refuses_says_how_many_and_ends_them(
    real_url: str,
) -> None:
    # given a process that has room for a few hundred threads
    code = f"""
import agentbus, agentbus.errors, resource, threading
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
threading.stack_size(2**24)
try:
    agentbus.connect({real_url!r}).subscribe("mail", print, concurrency=10_000)
except agentbus.errors.AgentBusError as error:
    print(error, threading.active_count(), sep="\\n")
"""

    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    said, left = found.stdout.splitlines()
    assert said.startswith("the system started only ")
    assert "of 10,000 threads" in said
    assert left == "1", found.stderr
