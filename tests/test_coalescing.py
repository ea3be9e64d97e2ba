"""Coroutines that publish at the same time share a request; each gets its own id, or its own error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus import InvalidPayload, QueueFull, Task
from tests.proxy import Proxy
from tests.servers import Server, ask, free_port

CALLERS = 50
# The coroutines of a loop share no connection to the in-memory server.
on_a_server = pytest.mark.parametrize("url", ["valkey"], indirect=True)


async def stored(bus: agentbus.AsyncBus, queue: str = "mail") -> dict[str, Any]:
    """Return the payloads of a queue by id, in their order."""
    return dict(await bus.queue(queue).peek(1000))


def requests(bus: agentbus.Bus) -> int:
    """Return how many slots the project's writers have used: one for each request in flight."""
    return len(ask(bus, "KEYS", f"{bus.project}:once:*"))


async def test_each_of_many_callers_gets_the_id_of_its_own_task(abus):
    queue = abus.queue("mail")

    ids = await asyncio.gather(*(queue.publish(number) for number in range(CALLERS)))

    found = await stored(abus)
    assert [found[each] for each in ids] == [*range(CALLERS)]


@on_a_server
async def test_callers_at_the_same_time_share_a_request(abus, bus):
    queue = abus.queue("mail")

    await queue.publish(-1)

    await asyncio.gather(*(queue.publish(number) for number in range(CALLERS)))

    # The first is sent at once, and the others follow together.
    assert requests(bus) == 2


@on_a_server
async def test_what_is_published_is_in_the_order_of_the_calls(abus):
    queue = abus.queue("mail")
    # So that the server knows the scripts.
    await queue.publish(-2)
    await queue.publish(-1, topic="t")
    kinds = (lambda n: n, lambda n: n, lambda n: Task(n, topic="t"), lambda n: n)

    await asyncio.gather(*(queue.publish(kinds[n % 4](n)) for n in range(CALLERS)))

    assert [*(await stored(abus)).values()] == [*range(-2, CALLERS)]


async def test_payloads_of_several_queues_arrive_each_in_its_own(abus):
    names = [f"mail-{number % 3}" for number in range(CALLERS)]

    ids = await asyncio.gather(*(abus.queue(name).publish(name) for name in names))

    for name in set(names):
        found = await stored(abus, name)
        assert set(found.values()) == {name}
        assert [*found] == [each for each, at in zip(ids, names, strict=True) if at == name]


@on_a_server
async def test_a_caller_that_is_cancelled_leaves_the_others_their_ids(abus):
    queue = abus.queue("mail")
    await queue.publish(-1)
    calls = [asyncio.create_task(queue.publish(number)) for number in range(CALLERS)]
    await asyncio.sleep(0)

    for call in calls[::5]:
        call.cancel()

    ids = await asyncio.gather(*calls, return_exceptions=True)
    found = await stored(abus)
    for number, each in enumerate(ids):
        if number % 5:
            assert found[each] == number
        else:
            assert isinstance(each, asyncio.CancelledError)


async def test_only_those_for_which_there_is_no_room_are_refused(abus):
    queue = abus.queue("mail", bound=20)
    await queue.publish(-1)

    ids = await asyncio.gather(
        *(queue.publish(number) for number in range(CALLERS)), return_exceptions=True
    )

    found = await stored(abus)
    accepted = [each for each in ids if isinstance(each, str)]
    refused = [each for each in ids if isinstance(each, QueueFull)]
    assert set(accepted) < set(found)
    assert (len(accepted), len(refused), len(found)) == (19, CALLERS - 19, 20)


async def test_an_invalid_payload_is_the_error_of_its_caller_alone(abus):
    queue = abus.queue("mail")
    first = await queue.publish(-1)
    payloads = [object() if number == 3 else number for number in range(CALLERS)]

    ids = await asyncio.gather(*map(queue.publish, payloads), return_exceptions=True)

    assert isinstance(ids.pop(3), InvalidPayload)
    assert {first, *ids} == {*await stored(abus)}


@on_a_server
async def test_large_payloads_are_not_all_in_one_request(abus, bus):
    queue = abus.queue("mail")

    await queue.publish(-1)

    ids = await asyncio.gather(*(queue.publish("x" * 100_000) for _ in range(10)))

    assert len({*ids}) == 10
    assert 2 < requests(bus) < 10


async def test_an_answer_that_is_lost_adds_no_task(own_server: Server, project: str):
    with Proxy(own_server.socket) as proxy:
        proxy.loses_every = 3
        async with agentbus.aio.connect(proxy.url, project=project, agent="ada") as bus:
            queue = bus.queue("mail")
            for first in range(0, 10 * CALLERS, CALLERS):
                numbers = range(first, first + CALLERS)
                ids = await asyncio.gather(*map(queue.publish, numbers))
                assert len({*ids}) == CALLERS
            found = await stored(bus)

    assert sorted(found.values()) == [*range(10 * CALLERS)]


async def test_each_caller_gets_an_error_of_its_own_without_a_server(project):
    async with agentbus.aio.connect(
        f"redis://127.0.0.1:{free_port()}", project=project, deadline=0.2
    ) as bus:
        calls = (bus.queue("mail").publish(number) for number in range(3))

        errors = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(error) for error in errors} == {agentbus.BackendUnavailable}
    assert len({id(error) for error in errors}) == 3


def test_a_bus_serves_one_event_loop_after_another(real_url: str, project: str):
    bus = agentbus.aio.connect(real_url, project=project, agent="ada")

    async def interrupted() -> None:
        calls = [asyncio.create_task(bus.queue("mail").publish(number)) for number in range(3)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()

    async def served() -> int:
        calls = (bus.queue("mail").publish(number) for number in range(CALLERS))
        ids = await asyncio.gather(*calls)
        await bus.aclose()
        return len({*ids})

    asyncio.run(interrupted())
    assert asyncio.run(served()) == CALLERS


@on_a_server
async def test_delayed_tasks_of_callers_at_the_same_time_share_a_request(abus, bus):
    queue = abus.queue("mail")
    await queue.publish(-1, delay=60)

    ids = await asyncio.gather(
        *(queue.publish(number, delay=60 + number) for number in range(CALLERS))
    )

    assert requests(bus) == 2
    shown = [bus.task(each) for each in ids]
    assert [(one.state, one.payload) for one in shown] == [("delayed", n) for n in range(CALLERS)]
    due = [one.due for one in shown]
    assert due == sorted(due)


@on_a_server
async def test_of_delayed_tasks_together_each_is_accepted_that_has_room(abus, bus):
    queue = abus.queue("mail", bound=30)
    await queue.publish(-1, delay=60)

    found = await asyncio.gather(
        *(queue.publish(number, delay=60) for number in range(CALLERS)), return_exceptions=True
    )

    accepted = [one for one in found if isinstance(one, str)]
    assert len(accepted) == 29
    assert sum(isinstance(one, QueueFull) for one in found) == CALLERS - 29
    assert int(ask(bus, "HGET", bus.scope.keys.stats("mail"), "refused")) == CALLERS - 29
