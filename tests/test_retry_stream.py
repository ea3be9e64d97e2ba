"""A task that waits long for its next attempt does not keep the tasks behind it in its queue."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus import Bury, Retry
from agentbus.errors import QueueFull, Refused, TaskBuried, TaskCancelled
from agentbus.queues.ids import STREAMS
from tests.servers import ask
from tests.tiers import nightly, on_one_store

BOUND = 20
HOUR = 3600.0
FAR = 4_000_000_000_000


def flooded(bus: agentbus.Bus, *groups: str, rounds: int = 14, priority: str = "normal") -> None:
    """Publish, and do, more than ten times the bound."""
    queue = bus.queue("mail", bound=BOUND)
    for _ in range(rounds):
        queue.publish_many(range(BOUND - 4), priority=priority)
        for group in groups or ("default",):
            bus.subscribe("mail", lambda _d: None, group=group, drain=False, count=BOUND - 4).run()


def tried(
    bus: agentbus.Bus,
    task: Any,
    error: BaseException | None = None,
    *,
    group: str = "default",
    **how: Any,
) -> str:
    """Publish a task and let its first attempt fail."""

    def handler(_delivery: Any) -> None:
        raise error or Retry("later", after=HOUR)

    name = bus.queue("mail", bound=BOUND).publish(task, **how)
    worker = bus.subscribe("mail", handler, group=group, count=1)
    worker.run_once()
    return name


def lengths(bus: agentbus.Bus) -> list[int]:
    keys = bus.runner.scope.keys
    return [ask(bus, "XLEN", keys.queue("mail", one)) for one in STREAMS]


def due_now(bus: agentbus.Bus, group: str = "default") -> None:
    """Make all tasks put aside due."""
    keys = bus.runner.scope.keys
    for one in STREAMS:
        key = keys.retries("mail", group, one)
        for entry in ask(bus, "ZRANGE", key, 0, FAR - 1, "BYSCORE"):
            ask(bus, "ZADD", key, 1000, entry)


@on_one_store
@pytest.mark.parametrize("priority", ["normal", nightly("high")])
def test_publishes_and_acks_go_on_while_a_task_waits_for_an_hour(bus, priority):
    name = tried(bus, "later", priority=priority)

    flooded(bus, priority=priority, rounds=40)

    assert sum(lengths(bus)) <= 11 * BOUND
    found = bus.task(name)
    assert (found.state, found.attempts, found.payload) == ("retrying", 1, "later")
    assert found.priority == priority
    assert [one.id for one in bus.queue("mail").inspect() if one.state == "retrying"] == [name]
    assert bus.queue("mail").groups()[0].retrying == 1


def test_a_moved_task_runs_when_it_is_due_as_the_attempt_that_it_is(bus):
    name = tried(bus, "later", headers={"a": "b"}, priority="high")
    flooded(bus, priority="high")
    due_now(bus)
    got: list[Any] = []

    def handler(delivery: Any) -> str:
        got.append((delivery.id, delivery.attempt, delivery.priority, delivery.payload))
        got.append((delivery.headers, delivery.queue))
        return "done at last"

    bus.subscribe("mail", handler, drain=True).run()

    assert got == [(name, 2, "high", "later"), ({"a": "b"}, "mail")]
    assert bus.result(name) == "done at last"
    assert bus.task(name).state == "done"
    # nothing of it is left
    keys = bus.runner.scope.keys
    assert lengths(bus)[-1] == 0
    assert ask(bus, "EXISTS", keys.moved("mail")) == 0
    assert ask(bus, "EXISTS", keys.attempts("mail", "default", "retry")) == 0


@on_one_store
def test_a_moved_task_is_retried_and_buried_under_its_id_and_priority(bus):
    name = tried(bus, "later", priority="low")
    flooded(bus, priority="low")
    due_now(bus)

    def handler(_delivery: Any) -> None:
        raise Retry("again", after=HOUR)

    bus.subscribe("mail", handler).run_once()
    assert (bus.task(name).state, bus.task(name).attempts) == ("retrying", 2)
    due_now(bus)

    def last(_delivery: Any) -> None:
        raise Bury("no")

    bus.subscribe("mail", last).run_once()

    (letter,) = bus.queue("mail").dead_letters()
    assert (letter.task_id, letter.attempts, letter.fields["priority"]) == (name, 3, "low")
    with pytest.raises(TaskBuried):
        bus.result(name)
    again = bus.queue("mail").replay(letter.id)
    assert bus.task(again).priority == "low"
    assert bus.task(again).payload == "later"


@on_one_store
def test_a_moved_entry_of_another_program_stays_as_it_was_written(bus):
    ask(bus, "XADD", bus.runner.scope.keys.queue("mail"), "*", "id", "7", "work", "tests")

    def handler(_delivery: Any) -> None:
        raise Retry("later", after=HOUR)

    bus.queue("mail", bound=BOUND)
    bus.subscribe("mail", handler).run_once()
    flooded(bus)
    due_now(bus)
    assert lengths(bus)[-1] == 1
    got: list[Any] = []
    bus.subscribe("mail", lambda d: got.append(d.payload), drain=True).run()
    assert got == [{"id": "7", "work": "tests"}]


@on_one_store
def test_a_moved_task_can_be_cancelled(bus):
    name = tried(bus, "later")
    flooded(bus)

    assert bus.cancel(name).state == "cancelled"

    assert bus.task(name).state == "cancelled"
    with pytest.raises(TaskCancelled):
        bus.result(name)
    with pytest.raises(Refused):
        bus.cancel(bus.queue("mail").publish(1)) and bus.queue("mail").publish(1, after=name)
    due_now(bus)
    assert bus.subscribe("mail", lambda _d: None, drain=True).run() == 0


@on_one_store
def test_tasks_that_wait_for_a_moved_one_get_ready_when_it_is_done(bus):
    name = tried(bus, "first")
    flooded(bus)

    second = bus.queue("mail").publish("second", after=name)

    assert bus.task(second).state == "blocked"
    due_now(bus)
    got: list[Any] = []
    bus.subscribe("mail", lambda d: got.append(d.payload), drain=True).run()
    bus.subscribe("mail", lambda d: got.append(d.payload), drain=True).run()
    assert got == ["first", "second"]


def test_a_moved_task_keeps_its_place_among_those_with_its_ordering_key(bus):
    first = tried(bus, 1, ordering_key="a")
    queue = bus.queue("mail", bound=BOUND)
    # the second of the key waits for it, and is put aside, too
    second = queue.publish(2, ordering_key="a")
    bus.subscribe("mail", lambda _d: None).run_once()
    flooded(bus)
    third = queue.publish(3, ordering_key="a")
    bus.subscribe("mail", lambda _d: None).run_once()
    assert [bus.task(one).state for one in (first, second, third)] == ["retrying"] * 3

    due_now(bus)
    got: list[Any] = []
    bus.subscribe("mail", lambda d: got.append(d.payload), drain=True).run()

    assert got == [1, 2, 3]


@on_one_store
def test_only_the_group_that_retries_has_the_moved_task(bus):
    queue = bus.queue("mail", bound=BOUND)
    for group in ("default", "other"):
        bus.subscribe("mail", lambda _d: None, group=group).run_once()
    name = tried(bus, "later")
    bus.subscribe("mail", lambda _d: None, group="other", count=1).run()

    flooded(bus, "default", "other")

    assert bus.task(name, group="default").state == "retrying"
    assert {one.group: one.retrying for one in queue.groups()} == {"default": 1, "other": 0}
    got: list[Any] = []
    due_now(bus)
    bus.subscribe("mail", lambda d: got.append(d.payload), group="other", drain=True).run()
    bus.subscribe("mail", lambda d: got.append(d.payload), drain=True).run()
    assert got == ["later"]


@on_one_store
def test_what_a_dead_worker_held_of_them_is_reclaimed(bus, connect):
    name = tried(bus, "later")
    flooded(bus)
    due_now(bus)
    (fetched,) = connect("b").queue("mail").fetch(visibility=0.001)
    assert fetched.id == name

    got: list[Any] = []
    bus.subscribe("mail", lambda d: got.append(d.attempt), visibility=0.001, drain=True).run()

    assert got == [3]


@on_one_store
def test_a_task_that_runs_still_keeps_ten_times_the_bound(bus, connect):
    queue = bus.queue("mail", bound=BOUND)
    name = queue.publish("long")
    connect("b").queue("mail").fetch()

    with pytest.raises(QueueFull, match=name.partition("@")[0]):
        flooded(bus)


@on_one_store
def test_a_queue_with_moved_tasks_is_deleted_whole(bus):
    tried(bus, "later")
    flooded(bus)

    with pytest.raises(Refused, match="1 undone task"):
        bus.queue("mail").delete()
    bus.queue("mail").delete(force=True)

    keys = bus.runner.scope.keys
    assert ask(bus, "EXISTS", *(keys.queue("mail", one) for one in STREAMS)) == 0
    assert ask(bus, "EXISTS", keys.moved("mail"), keys.retries("mail", "default", "retry")) == 0


@pytest.mark.slow
@on_one_store
def test_the_moved_tasks_themselves_do_not_pile_up(bus):
    keys = bus.runner.scope.keys
    tried(bus, "oldest")
    (oldest,) = ask(bus, "ZRANGE", keys.retries("mail", "default", "normal"), 0, 0)
    ask(bus, "ZADD", keys.retries("mail", "default", "normal"), FAR, oldest)
    for number in range(120):
        tried(bus, number)
        if number % 3 == 2:
            flooded(bus)
            due_now(bus)
            bus.subscribe("mail", lambda _d: None, count=3).run()

    # then those behind the oldest were trimmed
    assert 1 <= lengths(bus)[-1] < 120


@pytest.mark.slow
@on_one_store
def test_a_hundred_thousand_tasks_go_through_beside_one_that_waits_for_an_hour(bus):
    queue = bus.queue("mail", bound=500)
    name = tried(bus, "later")

    for _ in range(250):
        queue.publish_many(range(400))
        bus.subscribe("mail", lambda _d: None, count=400).run()

    assert sum(lengths(bus)) <= 11 * 500
    assert bus.task(name).state == "retrying"
    assert bus.queue("mail").groups()[0].lag == 1
