"""Workers: every task is run as often as it must be, by one worker at a time, whatever its handler does."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import QueueFull, UsageError
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff, Retry
from tests.conftest import Connect
from tests.servers import ask
from tests.tiers import on_one_store

SOON = Backoff(first=0.01)
PATIENCE = 30.0


def drain(bus: agentbus.Bus, handler: Callable[..., Any], **options: Any) -> int:
    """Work the queue `mail` until nothing is left, and return how many tasks were done."""
    return bus.subscribe("mail", handler, drain=True, **{"backoff": SOON, **options}).run()


def background(worker: Any) -> threading.Thread:
    thread = threading.Thread(target=worker.run)
    thread.start()
    return thread


def test_what_was_published_before_the_first_worker_is_done_once_in_order(
    bus: agentbus.Bus,
) -> None:
    bus.queue("mail").publish_many(range(1000))
    got: list[int] = []

    assert drain(bus, lambda d: got.append(d.payload)) == 1000

    assert got == list(range(1000))
    assert drain(bus, lambda d: got.append(d.payload)) == 0


def test_a_task_that_fails_is_tried_again_until_it_succeeds(bus: agentbus.Bus) -> None:
    task = bus.queue("mail").publish("stubborn")
    attempts: list[tuple[int, str]] = []

    def handler(delivery: Delivery) -> str:
        attempts.append((delivery.attempt, delivery.id))
        if delivery.attempt < 3:
            raise ValueError("not yet")
        return "at last"

    assert drain(bus, handler) == 1

    assert attempts == [(1, task), (2, task), (3, task)]
    assert bus.queue("mail").result(task) == "at last"


def test_a_handler_may_say_when_to_try_again(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    runs: list[float] = []

    def handler(delivery: Delivery) -> None:
        runs.append(time.time())
        if delivery.attempt == 1:
            raise Retry("busy", after=0.2)

    drain(bus, handler, backoff=Backoff(first=300))

    assert len(runs) == 2
    assert runs[1] - runs[0] > 0.195


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("\udcff"), ValueError("a\0b"), Unprintable(), asyncio.CancelledError()),
        *(Retry("later"), ValueError("x" * 1_000_000)),
    ],
    ids=lambda error: repr(error)[:30].encode("ascii", "backslashreplace").decode(),
)
def test_no_error_of_a_handler_ends_its_worker(bus: agentbus.Bus, error: BaseException) -> None:
    bus.queue("mail").publish_many(["bad", "good"])
    done: list[str] = []

    def handler(delivery: Delivery) -> None:
        if delivery.payload == "bad":
            raise error
        done.append(delivery.payload)

    drain(bus, handler, attempts=1)

    assert done == ["good"]
    assert [letter.payload for letter in bus.queue("mail").dead_letters()] == ["bad"]


@pytest.mark.parametrize(
    "result", [object(), float("nan"), "\ud800", {1}, "x" * 300_000], ids=lambda r: repr(r)[:12]
)
def test_a_result_that_cannot_be_kept_fails_its_task_alone(bus: agentbus.Bus, result: Any) -> None:
    bus.queue("mail").publish_many(["bad", "good"])

    assert drain(bus, lambda d: result if d.payload == "bad" else None, attempts=1) == 1

    (letter,) = bus.queue("mail").dead_letters()
    assert letter.payload == "bad"
    assert "InvalidPayload" in letter.error


# -- order, groups --


def test_priorities_are_served_in_order(bus: agentbus.Bus) -> None:
    queue, got = bus.queue("mail"), []
    for priority in ("low", "normal", "high", "critical") * 2:
        queue.publish(priority, priority=priority)

    drain(bus, lambda d: got.append(d.priority), count=8)

    assert got == sorted(got, key=["critical", "high", "normal", "low"].index)


@on_one_store
@pytest.mark.parametrize("busy", ["critical", "high", "normal"])
def test_a_low_task_is_served_while_higher_ones_keep_coming(bus: agentbus.Bus, busy: str) -> None:
    # given a stream of more urgent tasks that never ends
    queue, served = bus.queue("mail"), 0
    queue.publish("low", priority="low")
    queue.publish("busy", priority=busy)

    def handler(delivery: Delivery) -> None:
        nonlocal served
        if delivery.payload == "low":
            worker.stop()
        elif served < 5000:
            served += 1
            queue.publish_many(["busy"] * 2, priority=busy)

    worker = bus.subscribe("mail", handler, drain=True)
    worker.run()

    assert served < 5000


def test_each_group_gets_every_task(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish_many(range(20))
    got: dict[str, list[int]] = {"a": [], "b": []}

    for group in got:
        drain(bus, lambda d: got[d.group].append(d.payload), group=group)

    assert got == {"a": list(range(20)), "b": list(range(20))}


def test_workers_of_one_group_share_its_tasks(bus: agentbus.Bus, connect: Connect) -> None:
    # given two workers, each of which holds on until the other has a task as well
    bus.queue("mail").publish_many(range(40))
    both, got = threading.Barrier(2), []

    def handler(delivery: Delivery) -> None:
        if not both.broken and delivery.payload < 2:
            both.wait(PATIENCE)
        got.append(delivery.payload)

    workers = [connect(name).subscribe("mail", handler, drain=True) for name in ("a", "b")]
    for thread in [background(worker) for worker in workers]:
        thread.join(PATIENCE)

    assert sorted(got) == list(range(40))
    assert all(worker.done for worker in workers)


# -- by hand --


def test_fetched_tasks_are_acknowledged_retried_and_buried_by_hand(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(["done", "later", "bad"])
    done, later, bad = queue.fetch()

    assert [delivery.id for delivery in (done, later, bad)] == ids
    assert (done.ack({"ok": 1}), later.retry(), bad.bury("broken")) == (True, True, True)

    assert (done.ack(), later.retry(), bad.bury("broken")) == (False, False, False)
    assert queue.result(ids[0]) == {"ok": 1}
    (again,) = queue.fetch(block=PATIENCE)
    assert (again.payload, again.attempt) == ("later", 2)
    assert [letter.error for letter in queue.dead_letters()] == ["broken"]


def test_fetch_delivers_a_delayed_task_that_is_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("delayed", delay=0.05)

    found = [delivery.payload for delivery in queue.fetch(block=60)]

    assert found == ["delayed"]


@pytest.mark.parametrize("visibility", [0, -1, float("nan"), float("inf"), "5"])
def test_a_visibility_is_a_number_of_seconds_above_0(bus: agentbus.Bus, visibility: Any) -> None:
    queue = bus.queue("mail")
    queue.publish(1)

    with pytest.raises(UsageError, match="the visibility is"):
        queue.fetch(visibility=visibility)
    with pytest.raises(UsageError, match="the visibility is"):
        bus.subscribe("mail", lambda _: None, visibility=visibility)


def test_fetch_leaves_no_consumers_behind(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail")
    for number in range(20):
        queue.publish(number)
        (delivery,) = queue.fetch()
        delivery.ack()

    consumers = ask(bus, "XINFO", "CONSUMERS", Keys(project).queue("mail"), "default")
    assert len(consumers) <= 1


def test_a_stale_owner_is_refused_and_told(bus: agentbus.Bus, connect: Connect) -> None:
    # given a task whose holder gives no sign of life for longer than the visibility
    queue, runs = bus.queue("mail"), []
    task = queue.publish(1)
    (stale,) = queue.fetch(visibility=0.05)

    def handler(delivery: Delivery) -> str:
        runs.append(delivery.attempt)
        # when the former owner comes back while another runs it
        assert (stale.ack("mine"), stale.retry(), stale.bury("no")) == (False, False, False)
        return "theirs"

    worker = connect("bob").subscribe("mail", handler, visibility=0.05, count=1)
    worker.run()

    # then nothing that it said counts
    assert runs == [2]
    assert queue.result(task) == "theirs"
    assert queue.dead_letters() == []


@on_one_store
def test_a_handler_much_longer_than_the_visibility_runs_once(
    bus: agentbus.Bus, connect: Connect
) -> None:
    # given a second worker that would take over what looks abandoned
    queue, runs = bus.queue("mail"), []

    def handler(delivery: Delivery) -> str:
        runs.append(delivery.attempt)
        # The work itself takes four times the visibility.
        time.sleep(4)
        return "done"

    worker, other = (connect(name).subscribe("mail", handler, visibility=1) for name in ("a", "b"))
    threads = [background(worker), background(other)]
    assert queue.result(queue.publish(1), wait=PATIENCE) == "done"
    worker.stop()
    other.stop()
    for thread in threads:
        thread.join(PATIENCE)

    assert runs == [1]
    assert worker.done + other.done == 1


def test_a_handler_that_takes_no_delivery_is_refused_before_a_task_is_taken(
    bus: agentbus.Bus,
) -> None:
    def without() -> None: ...

    async def with_two(_delivery: Delivery, _database: object) -> None: ...

    @functools.wraps(with_two)
    def injected(delivery: Delivery) -> None: ...

    for wrong in (without, with_two, functools.partial(injected, 1)):
        with pytest.raises(UsageError, match="cannot be called with a delivery alone"):
            bus.subscribe("mail", wrong)

    assert [bus.subscribe("mail", right).queue for right in (injected, print)] == ["mail"] * 2


@on_one_store
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}])
def test_a_heartbeat_that_the_gil_delays_is_a_warning_that_names_the_task(
    bus: agentbus.Bus, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    def handler(_delivery: Delivery) -> None:
        # As a C extension does that never releases the GIL.
        ctypes.PyDLL(None).usleep(500_000)

    # The heartbeat thread does not notice where it was within a request when the GIL was taken.
    while not caplog.records:
        task = bus.queue("mail").publish(1)
        with caplog.at_level("WARNING", "agentbus"):
            bus.subscribe("mail", handler, visibility=0.3, count=1, **options).run()

    warned = vars(caplog.records[0])
    assert (warned["levelname"], warned["queue"], warned["id"]) == ("WARNING", "mail", task)
    assert (warned["outcome"], warned["duration_ms"] >= 400) == ("late", True)
    assert f"with the tasks {task} (group default)" in caplog.records[0].getMessage()


# -- the end of a worker --


def test_count_is_exact_where_several_priorities_have_tasks(bus: agentbus.Bus) -> None:
    # given tasks of every priority that arrive once a worker has begun
    queue, got = bus.queue("mail"), []
    queue.publish("first")

    def handler(delivery: Delivery) -> None:
        got.append(delivery.payload)
        if delivery.payload == "first":
            for priority in ("critical", "high", "normal", "low"):
                queue.publish("more", priority=priority)

    assert bus.subscribe("mail", handler, count=2).run() == 2

    # then no more than it was told have run, and the rest is there for the next
    assert got == ["first", "more"]
    assert drain(bus, print) == 3


def test_count_is_exact_where_several_retries_are_due(bus: agentbus.Bus) -> None:
    queue, runs = bus.queue("mail"), []
    queue.publish_many(range(5))
    for delivery in queue.fetch():
        delivery.retry()

    assert bus.subscribe("mail", lambda d: runs.append(d.payload), count=2).run() == 2

    assert len(runs) == 2


def test_stop_finishes_and_acknowledges_what_runs(bus: agentbus.Bus, connect: Connect) -> None:
    # given a worker in the midst of a task
    queue, running, go_on = bus.queue("mail"), threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> str:
        running.set()
        go_on.wait(PATIENCE)
        return "done"

    task = queue.publish(1)
    worker = connect("bob").subscribe("mail", handler)
    thread = background(worker)
    assert running.wait(PATIENCE)

    # when it is stopped, twice
    worker.stop()
    worker.stop()
    go_on.set()
    thread.join(PATIENCE)

    # then the task is done, and stays so
    assert not thread.is_alive()
    assert queue.result(task) == "done"
    assert drain(bus, print) == 0


def test_stop_lets_go_of_what_was_taken_and_not_begun(bus: agentbus.Bus) -> None:
    # given a worker that takes large batches by now
    bus.queue("mail").publish_many(range(1000))
    got: list[int] = []

    def handler(delivery: Delivery) -> None:
        got.append(delivery.payload)
        if delivery.payload == 600:
            worker.stop()

    # when it is stopped within one
    worker = bus.subscribe("mail", handler)
    worker.run()

    # then it does no more, and another does the rest without waiting, each once
    assert got == list(range(601))
    drain(bus, lambda d: got.append(d.payload))
    assert sorted(got) == list(range(1000))


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=str)
def test_a_worker_that_never_ran_leaves_nothing_open(
    bus: agentbus.Bus, options: dict[str, Any]
) -> None:
    async def handler(delivery: Delivery) -> None: ...

    before = set(threading.enumerate())
    with bus.subscribe("mail", handler, **options) as worker:
        pass

    assert worker.done == 0
    del worker
    gc.collect()  # An open loop would warn, and warnings are errors here.
    assert set(threading.enumerate()) <= before


def test_run_once_does_what_is_due_and_returns(bus: agentbus.Bus) -> None:
    queue, got = bus.queue("mail"), []
    queue.publish("delayed", delay=0.0)
    queue.publish("now")

    with bus.subscribe("mail", lambda d: got.append(d.payload)) as worker:
        while worker.run_once():
            pass

    assert sorted(got) == ["delayed", "now"]


def test_a_retry_of_a_worker_that_is_gone_is_not_late_because_another_retry_is_far(
    bus: agentbus.Bus, connect: Connect
) -> None:
    # given a worker that knows of a task put aside for a long time, and has nothing else to do
    queue = bus.queue("mail")
    queue.publish("far")
    (delivery,) = queue.fetch()
    assert delivery.retry(after=300)
    worker = connect("bob").subscribe("mail", lambda d: "done")
    worker.run_once()

    # when another one puts a task aside for a moment, and ends
    near = queue.publish("near")
    (delivery,) = queue.fetch()
    assert delivery.retry(after=0.1)
    thread = background(worker)

    # then the first does it as soon as it is due
    assert queue.result(near, wait=PATIENCE) == "done"
    worker.stop()
    thread.join(PATIENCE)


# -- what others do to the streams --


@on_one_store
@pytest.mark.parametrize("what", ["group", "stream"])
@pytest.mark.parametrize("when", ["running", "waiting"])
def test_a_worker_survives_that_its_group_or_stream_is_removed(
    bus: agentbus.Bus, connect: Connect, project: str, what: str, when: str
) -> None:
    queue, stream = bus.queue("mail"), Keys(project).queue("mail")

    def remove() -> None:
        if what == "group":
            ask(bus, "XGROUP", "DESTROY", stream, "default")
        else:
            ask(bus, "DEL", stream)

    removed = threading.Event()

    def handler(delivery: Delivery) -> str:
        if delivery.payload == "remove" and not removed.is_set():
            remove()
            removed.set()
        return "done"

    worker = connect("bob").subscribe("mail", handler, visibility=0.3)
    thread = background(worker)
    assert queue.result(queue.publish("first"), wait=PATIENCE)
    if when == "running":
        queue.publish("remove")
        assert removed.wait(PATIENCE)
    else:
        remove()

    assert queue.result(queue.publish("after"), wait=PATIENCE) == "done"
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@on_one_store
def test_everything_accepted_from_a_fast_publisher_is_done(
    bus: agentbus.Bus, connect: Connect
) -> None:
    # given a worker, and a publisher that never waits
    queue, got, accepted, refused = bus.queue("mail", bound=50), [], [], 0
    worker = connect("bob").subscribe("mail", lambda d: got.append(d.payload))
    thread = background(worker)

    for number in range(2000):
        try:
            queue.publish(number)
            accepted.append(number)
        except QueueFull:
            refused += 1
    worker.stop()
    thread.join(PATIENCE)
    drain(bus, lambda d: got.append(d.payload))

    # Those that the first worker gave back unbegun may come after some that it never took.
    assert sorted(got) == accepted
    assert len(accepted) + refused == 2000


@on_one_store
@pytest.mark.parametrize("batch", [False, True])
def test_a_worker_in_a_running_event_loop_runs_coroutines(bus: agentbus.Bus, batch: bool) -> None:
    bus.queue("mail").publish_many(range(3))
    ran: list[Any] = []

    async def handler(delivery: Any) -> None:
        await asyncio.sleep(0)
        ran.extend(delivery if batch else [delivery])

    async def cell() -> int:
        return drain(bus, handler, batch=batch)

    assert asyncio.run(cell()) == 3
    assert len(ran) == 3


@on_one_store
def test_a_function_that_returns_a_coroutine_runs_in_a_running_event_loop(
    bus: agentbus.Bus,
) -> None:
    bus.queue("mail").publish_many(range(3))

    async def answer() -> str:
        return "done"

    async def cell() -> int:
        return drain(bus, lambda _: answer(), attempts=1)

    assert asyncio.run(cell()) == 3
    assert list(bus.queue("mail").dead_letters()) == []


@on_one_store
@pytest.mark.parametrize(
    ("ending", "code"), [("raise SystemExit(0)", 0), ("raise ValueError", 1), ("pass", 0)], ids=str
)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_child_that_a_handler_forks_settles_no_task(
    bus: agentbus.Bus, ending: str, code: int, concurrency: int
) -> None:
    # given a handler whose child comes back from it, beside tasks that wait in the same batch
    tasks = bus.queue("mail").publish_many(range(4))
    ended: list[int] = []

    def handler(delivery: Delivery) -> int:
        if delivery.payload == 1:
            child = os.fork()
            if child == 0:
                exec(ending)
                return 0
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return int(delivery.payload)

    assert drain(bus, handler, attempts=1, concurrency=concurrency) == 4

    assert ended == [code]
    assert [bus.result(task) for task in tasks] == [0, 1, 2, 3]
    assert list(bus.queue("mail").dead_letters()) == []
