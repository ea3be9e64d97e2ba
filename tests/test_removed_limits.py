"""Tasks that wait for a limit of their queue when it is removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import agentbus
from agentbus.tasks.limits import Limits
from tests.conftest import Connect
from tests.servers import ask
from tests.tiers import on_one_store


def publish(bus: agentbus.Bus, number: int) -> None:
    bus.queue("mail").publish_many(range(number))


def until(met: Callable[[], object]) -> None:
    for _ in range(3000):
        if met():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def aside(bus: agentbus.Bus, number: int, groups: tuple[str, ...] = ("default",)) -> None:
    """Publish tasks of which each group runs one, and which wait for hours for their limit."""
    publish(bus, number)
    Limits(bus).set("mail", per_second=0.001, burst=1)
    for group in groups:
        assert len(bus.queue("mail").fetch(group=group, count=number)) == 1


def test_tasks_that_wait_for_a_limit_may_start_in_order_once_it_is_removed(
    bus: agentbus.Bus,
) -> None:
    groups = ("default", "other: 2")
    aside(bus, 12, groups)
    # Another program's group, whose name is none of ours.
    ask(bus, "XGROUP", "CREATE", bus.scope.keys.queue("mail", "normal"), b"\n\xff", "0")

    Limits(bus).remove("mail")

    for group in groups:
        found = bus.queue("mail").fetch(group=group, count=12)
        assert [one.payload for one in found] == [*range(1, 12)]
        assert {one.attempt for one in found} == {1}
    assert not ask(bus, "KEYS", f"{bus.scope.keys.project}:limits:*")


@pytest.mark.parametrize("mends", [lambda bus: Limits(bus).remove("mail"), lambda bus: bus.tidy()])
def test_tasks_that_a_killed_removal_left_waiting_may_start_after_the_next_one_or_a_tidy(
    bus: agentbus.Bus, mends: Callable[[agentbus.Bus], object]
) -> None:
    # given a removal that was killed after its first request
    groups = ("default", "other")
    aside(bus, 3, groups)
    ask(bus, "HDEL", bus.scope.keys.paused, "limit:mail")
    assert bus.queue("mail").fetch() == []

    # when it is repeated, or a worker's upkeep comes
    assert mends(bus)

    # then all may start, and a further one finds nothing to do
    for group in groups:
        assert len(bus.queue("mail").fetch(group=group)) == 2
    assert not ask(bus, "KEYS", f"{bus.scope.keys.project}:limits:*")
    assert not Limits(bus).remove("mail")


def test_tidying_leaves_tasks_waiting_for_a_limit_that_is_in_force(bus: agentbus.Bus) -> None:
    aside(bus, 3)

    bus.tidy()

    assert bus.queue("mail").fetch() == []


@on_one_store
def test_many_tasks_that_wait_for_a_limit_may_start_once_it_is_removed(bus: agentbus.Bus) -> None:
    aside(bus, 1002)
    Limits(bus).remove("mail")

    assert bus.subscribe("mail", lambda _: None, count=1001).run() == 1001


def test_idle_workers_start_what_waited_for_a_limit_that_is_removed(connect: Connect) -> None:
    bus = connect()
    publish(bus, 4)
    Limits(bus).set("mail", per_second=0.001, burst=1)
    workers = [
        connect(name).subscribe("mail", lambda _: None, group=name, concurrency=number, count=4)
        for name, number in (("bob", 1), ("eve", 3))
    ]
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(worker.run) for worker in workers]
        keys = bus.scope.keys
        waiting = [keys.limits("mail", name)[1] for name in ("bob", "eve")]
        try:
            until(lambda: [ask(bus, "ZCARD", key) for key in waiting] == [3, 3])
            Limits(bus).remove("mail")
            assert [end.result(60) for end in ends] == [4, 4]
        finally:
            for worker in workers:
                worker.stop()


@pytest.mark.parametrize("asks", [True, False])
def test_a_worker_that_does_not_know_yet_that_a_limit_was_removed_puts_nothing_aside(
    bus: agentbus.Bus, asks: bool
) -> None:
    # given a worker that has read the limit, and tasks that wait for it
    aside(bus, 3)
    publish(bus, 2)
    late = bus.subscribe("mail", print)
    late._consumer.limit = Limits(bus).get("mail")
    _, taken = late._do(late._fetcher.new(2))

    # when the limit is removed by a program that ends before it could do more
    ask(bus, "HDEL", bus.scope.keys.paused, "limit:mail")
    if asks:
        assert [late._do(late._fetcher.admit(one)) for one in taken] == [True, True]
    else:
        late._do(late._fetcher.retries(1))

    # then all of them may start
    assert len(bus.queue("mail").fetch(count=5)) == (2 if asks else 1)
    assert not ask(bus, "KEYS", f"{bus.scope.keys.project}:limits:*")
    late.close()
