"""A cancelled task does not start; if it runs, its worker is asked to stop it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import agentbus
import agentbus.aio
from agentbus.core.keys import Keys
from agentbus.errors import NotFound, Refused, TaskBuried, TaskCancelled, TaskFailed
from agentbus.queues.consumer import QueueConsumer
from agentbus.retry import Backoff
from agentbus.routing import Router, parse
from tests.conftest import Connect
from tests.servers import ask

PATIENCE = 60.0
SOON = Backoff(first=0.001)


def drained(bus: agentbus.Bus, name: str = "mail", **options: Any) -> list[Any]:
    """Run what a queue holds, and return the payloads."""
    done: list[Any] = []
    bus.subscribe(name, lambda task: done.append(task.payload), drain=True, **options).run()
    return done


def cancelled(bus: agentbus.Bus, task: str) -> None:
    """Check that everybody hears of the cancellation of a task."""
    assert bus.task(task).state == "cancelled"
    with pytest.raises(TaskCancelled, match=f"it was cancelled by {bus.agent}") as error:
        bus.result(task, wait=PATIENCE)
    assert error.value.exit_code == 8


def route(bus: agentbus.Bus) -> None:
    """Move what `incoming` holds to the queue of an agent."""
    Router(bus, parse("agents: [ada]\ndefault: ada\n", "team.yaml"), drain=True).run()


# -- not started --


@pytest.mark.parametrize("groups", [0, 1])
def test_a_waiting_task_is_never_run(bus: agentbus.Bus, groups: int) -> None:
    queue = bus.queue("mail")
    if groups:
        queue.publish(0)
        assert drained(bus) == [0]
    task, _ = queue.publish_many([1, 2])

    assert bus.cancel(task).state == "cancelled"

    cancelled(bus, task)
    assert drained(bus) == [2]
    cancelled(bus, task)
    # Nor by a group that comes later.
    assert drained(bus, group="audit") == [0, 2][1 - groups :]


@pytest.mark.parametrize("how", ["delayed", "dependent"])
def test_a_task_that_is_not_ready_is_removed(bus: agentbus.Bus, how: str) -> None:
    queue = bus.queue("mail")
    first = queue.publish(1)
    task = queue.publish(2, delay=3600) if how == "delayed" else queue.publish(2, after=first)

    bus.cancel(task)

    cancelled(bus, task)
    assert drained(bus) == [1]
    keys = Keys(bus.project)
    for key in (keys.delayed("mail"), keys.bodies("mail"), keys.after("mail")):
        assert ask(bus, "EXISTS", key) == 0


def test_a_task_between_two_attempts_is_removed(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    (held,) = queue.fetch()
    held.retry(600)

    assert bus.cancel(task).state == "cancelled"

    cancelled(bus, task)
    assert bus.stats("mail")[0].pending == 0
    assert drained(bus) == []


def test_a_task_of_several_groups_is_cancelled_for_those_that_have_not_done_it(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    drained(bus, group="late")
    task = queue.publish(1)
    assert drained(bus, group="early") == [1]

    bus.cancel(task)

    assert drained(bus, group="late") == []
    assert bus.task(task, group="early").state == "done"
    assert bus.task(task, group="late").state == "cancelled"
    assert queue.result(task, group="early") is None


def test_what_waits_for_a_cancelled_task_is_buried(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish(1)
    second = queue.publish(2, after=first)
    third = queue.publish(3, after=second)

    bus.cancel(second)

    with pytest.raises(TaskBuried, match=f"waited for {second}, which was cancelled by"):
        bus.result(third)
    assert drained(bus) == [1]
    with pytest.raises(Refused, match=f"cannot wait for '{second}': it was cancelled"):
        queue.publish(4, after=second)


def test_a_cancelled_waiting_task_buries_what_waits_for_it(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish(1)
    second = queue.publish(2, after=first)

    bus.cancel(first)

    with pytest.raises(TaskBuried, match=f"waited for {first}, which was cancelled by"):
        bus.result(second)
    with pytest.raises(Refused, match="it was cancelled"):
        queue.publish(3, after=first)


def test_the_next_task_of_an_ordering_key_starts(bus: agentbus.Bus, connect: Connect) -> None:
    queue = bus.queue("mail")
    first, _ = (queue.publish(number, ordering_key="k") for number in (1, 2))
    (held,) = connect("bob").queue("mail").fetch(count=1)
    held.retry(600)

    bus.cancel(first)

    assert drained(bus) == [2]
    assert ask(bus, "EXISTS", Keys(bus.project).order("mail", "normal")) == 0


def test_the_key_of_a_cancelled_task_is_free(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for delay in (None, 3600):
        first = queue.publish(1, key="k", delay=delay)
        bus.cancel(first)
        second = queue.publish(2, key="k")
        assert second != first
        bus.cancel(second)

    assert drained(bus) == []


def test_a_routed_task_is_cancelled_in_the_queue_of_its_agent(bus: agentbus.Bus) -> None:
    tasks = bus.queue("incoming")
    task = tasks.publish(1, key="k")
    dependent = bus.queue("next").publish(2, after=task)
    route(bus)

    for _ in range(2):
        assert bus.cancel(task).state == "cancelled"

    assert bus.task(dependent).state == "dead"
    assert tasks.publish(3, key="k") != task
    assert drained(bus, "agent.ada") == []
    cancelled(bus, task)
    assert bus.cancel(task).state == "cancelled"


def test_the_worker_of_a_routed_task_is_asked_to_stop_it(
    bus: agentbus.Bus, connect: Connect
) -> None:
    task, _ = (bus.queue("incoming").publish(number, delay=0) for number in (1, 2))
    bus.tidy()
    route(bus)
    (held,) = connect("ada").queue("agent.ada").fetch(count=1)

    assert bus.cancel(task).state == "stopping"

    held.retry()
    cancelled(bus, task)


def test_a_routed_task_is_cancelled_for_its_agent_and_for_other_groups(bus: agentbus.Bus) -> None:
    tasks = bus.queue("incoming")
    tasks.publish(1)
    assert drained(bus, "incoming", group="audit") == [1]
    task = tasks.publish(2)
    dependent = bus.queue("next").publish(3, after=task)
    route(bus)

    for _ in range(2):
        assert bus.cancel(task).state == "cancelled"

    assert drained(bus, "incoming", group="audit") == []
    assert drained(bus, "agent.ada") == [1]
    assert bus.task(dependent).state == "dead"


def test_cancelling_twice_changes_nothing(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for delay in (None, 3600):
        task = queue.publish(1, delay=delay)

        assert bus.cancel(task) == bus.cancel(task)


def test_a_finished_task_is_refused_and_an_unknown_one_not_found(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    done, buried = queue.publish_many([1, 2])
    one, other = queue.fetch()
    one.ack()
    other.bury("no such address")

    with pytest.raises(Refused, match=f"{done}' is done"):
        bus.cancel(done)
    with pytest.raises(Refused, match=f"{buried}' is dead"):
        bus.cancel(buried)
    for unknown in ("1-1@mail", "d9@mail"):
        with pytest.raises(NotFound):
            bus.cancel(unknown)


def test_a_rerun_leaves_cancelled_tasks_out(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task, _ = queue.publish_many([1, 2])
    bus.cancel(task)
    assert drained(bus) == [2]

    assert queue.replay_from("0-0").tasks == 1
    assert drained(bus) == [2]


def test_a_blocked_fetch_skips_a_task_that_was_cancelled_before_it(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    drained(bus)
    task, _ = queue.publish_many([1, 2])
    bus.cancel(task)
    from agentbus.queues.consumer import QueueConsumer

    consumer = QueueConsumer(bus.scope, "mail", "default", "w")

    taken = bus._run("take", consumer.take(10, 1.0))

    assert [one.payload for one in taken] == [2]


def test_a_fetch_finds_what_is_behind_cancelled_tasks(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    *some, _ = queue.publish_many(range(6))
    for task in some:
        bus.cancel(task)

    assert [held.payload for held in queue.fetch(count=2)] == [5]
    assert queue.fetch(count=2) == []


def test_a_worker_that_runs_once_finds_what_is_behind_cancelled_tasks(bus: agentbus.Bus) -> None:
    *some, _ = bus.queue("mail").publish_many(range(6))
    for task in some:
        bus.cancel(task)

    assert bus.subscribe("mail", lambda _: None).run_once() == 1


def test_a_task_that_is_cancelled_just_as_a_worker_takes_it_is_settled(
    bus: agentbus.Bus, connect: Connect
) -> None:
    queue = bus.queue("mail")
    bus.cancel(queue.publish(1))
    task, other = queue.publish_many([agentbus.Task(2, reply_to="answers"), 3])
    second = queue.publish(4, after=task)
    consumer = QueueConsumer(connect("bob").scope, "mail", "default", "bob")
    bus._run("work", consumer.prepare())
    taken = bus._run("work", consumer.ack_and_take({}, 0.0, 3, 0))[1]
    # before the worker looks which of them were cancelled
    assert bus.cancel(task).state == "stopping"

    left = bus._run("work", consumer._without_cancelled(taken))

    assert [consumer.id_of(one) for one in left] == [other]
    cancelled(bus, task)
    assert bus.task(second).state == "dead"
    assert [answer["cancelled"] for _, answer in bus.queue("answers").peek()] == [True]


def test_who_asked_for_a_cancelled_task_is_told(bus: agentbus.Bus, connect: Connect) -> None:
    failed: list[Exception] = []

    def ask_for() -> None:
        try:
            connect("bob").ask("mail", 1, timeout=PATIENCE)
        except TaskFailed as error:
            failed.append(error)

    asker = threading.Thread(target=ask_for)
    asker.start()
    queue = bus.queue("mail")
    while not (waiting := queue.peek()):
        threading.Event().wait(0.005)

    bus.cancel(waiting[0][0])

    asker.join(PATIENCE)
    assert [type(error) for error in failed] == [TaskCancelled]


def test_tidying_forgets_cancelled_tasks_that_were_trimmed(bus: agentbus.Bus) -> None:
    keys = Keys(bus.project)
    first, second = bus.queue("mail").publish_many([1, 2])
    for task in (first, second):
        bus.cancel(task)
    assert drained(bus) == []
    ask(bus, "XTRIM", keys.queue("mail"), "MAXLEN", 1)

    bus.tidy("mail")

    assert ask(bus, "HKEYS", keys.cancelled("mail")) == [second.encode()]


# -- running --


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}])
def test_a_running_function_can_see_that_it_must_stop(
    bus: agentbus.Bus, connect: Connect, options: dict[str, Any]
) -> None:
    begun, seen = threading.Event(), []
    task, behind = bus.queue("mail").publish_many([1, 2])

    def handler(delivery: agentbus.Delivery) -> None:
        if delivery.payload == 2:
            return
        begun.set()
        while not delivery.cancelled:
            threading.Event().wait(0.005)
        seen.append(delivery.attempt)
        raise ValueError("stopped")

    worker = connect("bob").subscribe("mail", handler, drain=True, backoff=SOON, **options)
    running = threading.Thread(target=worker.run)
    running.start()
    assert begun.wait(PATIENCE)

    stopping = bus.cancel(task)

    assert (stopping.state, stopping.workers) == ("stopping", (worker.name,))
    running.join(PATIENCE)
    assert seen == [1]
    cancelled(bus, task)
    assert bus.task(task).runs[-1].outcome == "cancelled"
    assert bus.task(behind).state == "done"
    assert bus.queue("mail").dead_letters() == []


def test_a_task_that_a_worker_holds_and_has_not_started_is_dropped(
    bus: agentbus.Bus, connect: Connect
) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []
    bus.queue("mail").publish("warm up")
    first, second = bus.queue("mail").publish_many([1, 2])

    def handler(deliveries: Any) -> None:
        done.append(deliveries.payload)
        if deliveries.payload == 1:
            begun.set()
            assert go_on.wait(PATIENCE)

    bob = connect("bob")
    worker = bob.subscribe("mail", handler, drain=True)
    # It takes both at once.
    worker._loop._size = 8  # type: ignore[union-attr]
    running = threading.Thread(target=worker.run)
    running.start()
    assert begun.wait(PATIENCE)
    assert bus.cancel(second).state == "stopping"
    while not worker._consumer.stopping:
        threading.Event().wait(0.005)
    go_on.set()
    running.join(PATIENCE)

    assert done == ["warm up", 1]
    cancelled(bus, second)
    assert bus.task(first).state == "done"


def test_a_run_that_succeeds_all_the_same_is_done(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    (one,) = queue.fetch()
    assert bus.cancel(task).state == "stopping"

    assert one.ack("result")

    assert bus.task(task).state == "done"
    assert queue.result(task) == "result"
    with pytest.raises(Refused, match="is done"):
        bus.cancel(task)


def test_a_task_whose_worker_died_is_not_run_again(bus: agentbus.Bus, connect: Connect) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    second = queue.publish(2, after=task)
    connect("bob").queue("mail").fetch(visibility=0.05)
    assert bus.cancel(task).state == "stopping"
    assert bus.task(task).state == "running"

    assert drained(bus, visibility=0.05) == []

    cancelled(bus, task)
    assert bus.task(second).state == "dead"


def test_a_task_that_fails_after_its_cancellation_is_not_tried_again(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    (held,) = queue.fetch()
    bus.cancel(task)

    assert held.retry(0.0)

    cancelled(bus, task)
    assert bus.stats("mail")[0].pending == 0


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}])
async def test_a_running_coroutine_is_interrupted(
    abus: agentbus.aio.AsyncBus, options: dict[str, Any]
) -> None:
    begun, ended = asyncio.Event(), []
    task, _ = await abus.queue("mail").publish_many([1, 2])

    async def handler(delivery: agentbus.AsyncDelivery) -> None:
        if delivery.payload == 1:
            begun.set()
            await asyncio.sleep(PATIENCE)
        ended.append(delivery.payload)

    async with abus.subscribe("mail", handler, drain=True, **options) as worker:
        running = asyncio.ensure_future(worker.run())
        await begun.wait()
        assert (await abus.cancel(task)).workers == (worker.name,)
        await running

    assert ended == [2]
    assert (await abus.task(task)).state == "cancelled"
    with pytest.raises(TaskCancelled):
        await abus.result(task)


def test_a_task_that_was_given_back_after_it_was_cancelled_does_not_run(
    bus: agentbus.Bus, connect: Connect
) -> None:
    task = bus.queue("mail").publish(1)
    holder = QueueConsumer(connect("bob").scope, "mail", "default", "bob")
    bus._run("work", holder.prepare())
    (taken,) = bus._run("work", holder.take(1, 1.0))
    assert bus.cancel(task).state == "stopping"
    # when the worker gives it back before it hears of that
    assert bus._run("work", holder.give_back([taken])) == 1

    done: list[Any] = []
    bus.subscribe("mail", lambda one: done.append(one.payload), drain=True).run()

    assert done == []
    cancelled(bus, task)
