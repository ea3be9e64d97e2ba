"""Middleware around the handlers of workers."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

import agentbus
from agentbus.errors import UsageError
from agentbus.testing import adrain, drain
from agentbus.workers.worker import Worker
from tests.tiers import on_one_store

pytestmark = on_one_store


def named(name, seen):
    def around(delivery, call_next):
        seen.append(f"{name} before {delivery.payload}")
        try:
            return call_next(delivery)
        finally:
            seen.append(f"{name} after")

    return around


def test_the_first_middleware_is_the_outermost(bus):
    seen = []
    task = bus.queue("work").publish(1)

    def handler(delivery):
        seen.append("handler")
        return "done"

    with bus.subscribe(
        "work", handler, middleware=[named("outer", seen), named("inner", seen)], drain=True
    ) as worker:
        worker.run()

    assert seen == ["outer before 1", "inner before 1", "handler", "inner after", "outer after"]
    assert bus.result(task) == "done"


@pytest.mark.parametrize("how", [{}, {"concurrency": 3}, {"batch": True}])
def test_middleware_runs_once_for_each_call_of_the_handler(bus, how):
    seen = []
    bus.queue("work").publish_many(range(6))

    def count(subject, call_next):
        seen.extend(subject if isinstance(subject, list) else [subject])
        return call_next(subject)

    with bus.subscribe("work", lambda _: None, middleware=[count], drain=True, **how) as worker:
        assert worker.run() == 6

    assert sorted(one.payload for one in seen) == [*range(6)]


def test_an_error_passes_through_and_its_task_is_retried(bus):
    seen = []
    bus.queue("work").publish(1)

    def watch(delivery, call_next):
        try:
            return call_next(delivery)
        except agentbus.Retry as error:
            seen.append((delivery.attempt, type(error).__name__))
            raise

    def handler(delivery):
        if delivery.attempt == 1:
            raise agentbus.Retry(after=0)

    assert drain(bus, "work", handler, middleware=[watch]).done == [1]
    assert seen == [(1, "Retry")]


def test_middleware_may_answer_in_place_of_the_handler(bus):
    ran = []
    tasks = [bus.queue("work").publish(n) for n in range(2)]

    def odd_ones_only(delivery, call_next):
        return call_next(delivery) if delivery.payload % 2 else "skipped"

    found = drain(bus, "work", lambda d: ran.append(d.payload), middleware=[odd_ones_only])

    assert ran == [1]
    assert found.results == {tasks[0]: "skipped"}


def test_a_failure_of_middleware_is_one_of_the_task(bus):
    bus.queue("work").publish(1)

    def broken(delivery, call_next):
        raise agentbus.Bury("not today")

    drain(bus, "work", lambda _: None, middleware=[broken], raises=False)

    (letter,) = bus.queue("work").dead_letters()
    assert "not today" in letter.error


async def test_middleware_of_a_coroutine_function_is_awaited(abus):
    seen = []
    task = await abus.queue("work").publish(1)

    async def timed(delivery, call_next):
        await asyncio.sleep(0)
        result = await call_next(delivery)
        seen.append(result)
        return result

    async def handler(delivery):
        await asyncio.sleep(0)
        return "done"

    async with abus.subscribe("work", handler, middleware=[timed, timed], drain=True) as worker:
        await worker.run()

    assert seen == ["done", "done"]
    assert await abus.result(task) == "done"


async def test_adrain_runs_middleware(abus):
    await abus.queue("work").publish(1)

    async def double(delivery, call_next):
        return 2 * await call_next(delivery)

    async def handler(delivery):
        return delivery.payload

    drained = await adrain(abus, "work", handler, middleware=[double])

    assert [*drained.results.values()] == [2]


def test_a_worker_of_many_queues_has_middleware_too(bus):
    seen = []
    bus.queue("mail.a").publish(1)
    bus.queue("mail.b").publish(2)

    def handler(delivery):
        if len(seen) == 4:
            worker.stop()

    def record(delivery, call_next):
        seen.extend([delivery.queue, delivery.payload])
        return call_next(delivery)

    worker = bus.subscribe_many("mail.*", handler, middleware=[record])
    worker.run()

    assert {*seen} == {"mail.a", 1, "mail.b", 2}


def test_registered_handlers_have_their_own_middleware(bus):
    seen = []
    bus.queue("work").publish(1)

    @bus.subscribe("work", middleware=[named("one", seen)])
    def handler(delivery):
        return None

    bus.work(drain=True)

    assert seen == ["one before 1", "one after"]


async def _coroutine(delivery, call_next):
    return await call_next(delivery)


async def _handler(delivery):
    """Do nothing."""


@pytest.mark.parametrize(
    ("handler", "middleware", "said"),
    [
        (print, [_coroutine], "_coroutine is a coroutine function, and the handler print is not"),
        (_handler, [named("x", [])], "is not a coroutine function, and the handler _handler is"),
        (print, [None], "a middleware is None"),
        (print, named("x", []), "the middleware is <function"),
        (partial(_handler), [print], "is not a coroutine function"),
    ],
)
def test_middleware_that_does_not_fit_is_refused(bus, handler, middleware, said):
    with pytest.raises(UsageError, match=said):
        bus.subscribe("work", handler, middleware=middleware)


def test_a_worker_without_middleware_calls_its_handler_itself(bus):
    def handler(delivery):
        return None

    worker = Worker(bus.runner, "work", handler)

    assert worker._loop.executor._handler is handler
