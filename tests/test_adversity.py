"""Workers of every mode, to which happens what seldom does: lost answers, interrupts, removed groups."""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from agentbus.store.resp import digest
from tests.proxy import Proxy
from tests.servers import ask
from tests.tiers import nightly, on_one_store

PATIENCE = 30.0
# Longer than any test: what waits for it is not done in time.
AGES = 600
MODES: dict[str, dict[str, Any]] = {
    "serial": {},
    "batches": {"batch": True},
    "threads": {"concurrency": 4},
    "coroutines": {"concurrency": 4},
    "one coroutine": {},
}
each_mode = pytest.mark.parametrize("mode", MODES)


def subscribed(
    bus: agentbus.Bus, mode: str, act: Callable[[Delivery], Any], **options: Any
) -> agentbus.Worker:
    """Return a worker of this mode that does something for each task."""

    def batch(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            act(delivery)

    async def coroutine(delivery: Delivery) -> Any:
        await asyncio.sleep(0)
        return act(delivery)

    handler = {"batches": batch, "coroutines": coroutine, "one coroutine": coroutine}.get(mode, act)
    given = {"backoff": Backoff(first=0.01, longest=0.02), **MODES[mode], **options}
    return bus.subscribe("mail", handler, **given)


class Runs:
    """Counts how often each task was run, and with which attempts."""

    def __init__(self) -> None:
        self.attempts: dict[Any, list[int]] = collections.defaultdict(list)

    def __call__(self, delivery: Delivery) -> None:
        self.attempts[delivery.payload].append(delivery.attempt)

    @property
    def number(self) -> int:
        """How many tasks were begun."""
        return len(self.attempts)


def once_each(number: int) -> dict[Any, list[int]]:
    return {payload: [1] for payload in range(number)}


def left(bus: agentbus.Bus, project: str) -> int:
    """Return how many tasks of `mail` are pending."""
    pending = ask(bus, "XPENDING", Keys(project).queue("mail"), "default")
    return int(pending[0])


def stats(bus: agentbus.Bus, project: str, name: str) -> int:
    return int(ask(bus, "HGET", Keys(project).stats("mail"), name) or 0)


@pytest.fixture
def lossy(own_server) -> Iterator[Proxy]:
    """A proxy that can lose replies, and the connection with each."""
    with Proxy(own_server.socket) as proxy:
        yield proxy


def test_the_count_of_a_task_that_its_first_holder_has_done_goes_with_it(near_bus, project):
    # given a task that another consumer reclaimed from a frozen one, and this one again from the other
    frozen, other = (QueueConsumer(near_bus.scope, "mail", "default", name) for name in "ab")
    near_bus._run("work", frozen.prepare())
    near_bus.queue("mail").publish("hi")
    _, (task,) = near_bus._run("work", frozen.ack_and_take({}, 0.0, 1))
    for consumer in (other, frozen):
        near_bus._run("work", consumer.reclaim("normal", 0.0, "-", 1))
        (again,), *_ = near_bus._run("work", consumer.take_retries("normal", 1))
    # and that it has done as its first attempt, which is not counted
    near_bus._run("work", frozen.ack_and_take({"normal": [task.entry_id]}, 0.0, 0))

    # when it would begin what it reclaimed
    number = near_bus._run("work", frozen.begin(again))

    assert number == 0
    assert ask(near_bus, "EXISTS", Keys(project).attempts("mail", "default", "normal")) == 0


@pytest.fixture
def far_bus(lossy, project) -> Iterator[agentbus.Bus]:
    """A bus behind that proxy, with all the time in the world."""
    with agentbus.connect(lossy.url, project=project, agent="ada", deadline=60) as bus:
        yield bus


@pytest.fixture
def near_bus(own_server, project) -> Iterator[agentbus.Bus]:
    """A bus that sees what really happened."""
    with agentbus.connect(own_server.url, project=project, agent="auditor") as bus:
        # The server knows all scripts, so that an answer that is lost is not that it does not.
        other = QueueConsumer(bus.scope, "another", "default", "other")
        for op in (
            other.prepare(),
            other.ack_and_take({}, 0.0, 1),
            other.take_retries("normal", 1),
            other.reclaim("normal", 1.0, "-", 1),
        ):
            bus._run("work", op)
        yield bus


# -- answers that are lost --


@each_mode
@pytest.mark.parametrize("number", [1, 40])
def test_a_lost_answer_to_a_turn_costs_no_task_an_attempt_and_no_time(
    far_bus, near_bus, lossy, project, mode, number
):
    # given that what the first request for tasks gives never arrives
    near_bus.queue("mail").publish_many(range(number))
    lossy.loses = digest("ack_and_take").encode()
    runs = Runs()

    # when a worker does all there is
    worker = subscribed(far_bus, mode, runs, visibility=AGES, drain=True)
    worker.run()

    # then those are found, and run as if for the first time
    assert lossy.lost == 1
    assert runs.attempts == once_each(number)
    assert (worker.done, stats(near_bus, project, "processed")) == (number, number)
    assert stats(near_bus, project, "stale") == left(near_bus, project) == 0


@each_mode
def test_acknowledgements_whose_answer_is_lost_count_once(far_bus, near_bus, lossy, project, mode):
    # given a worker in the midst of its tasks, of which one breaks the network
    near_bus.queue("mail").publish_many(range(40))
    runs = Runs()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload == 20:
            lossy.loses = digest("ack_and_take").encode()

    # when the next answer, that also acknowledges, is lost
    worker = subscribed(far_bus, mode, act, visibility=AGES, drain=True)
    worker.run()

    assert lossy.lost == 1
    assert runs.attempts == once_each(40)
    assert (worker.done, stats(near_bus, project, "processed")) == (40, 40)
    assert stats(near_bus, project, "stale") == left(near_bus, project) == 0


@pytest.mark.parametrize("mode", ["serial", "batches", "one coroutine"])
def test_a_lost_answer_while_a_batch_runs_neither_runs_it_again_nor_loses_the_next(
    far_bus, near_bus, lossy, project, mode
):
    # given a worker that is brisk enough to take a batch while it runs one
    number = 2000
    near_bus.queue("mail").publish_many(range(number))
    runs = Runs()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload == 700:
            lossy.loses = b"XREADGROUP"

    # when the answer to that is lost
    worker = subscribed(far_bus, mode, act, visibility=AGES, drain=True)
    worker.run()

    assert lossy.lost == 1
    assert runs.attempts == once_each(number)
    assert (worker.done, stats(near_bus, project, "processed")) == (number, number)
    assert stats(near_bus, project, "stale") == left(near_bus, project) == 0


@pytest.mark.parametrize("mode", ["threads", nightly("coroutines")])
def test_what_a_lost_answer_gave_is_looked_for_without_running_anything_twice(
    far_bus, near_bus, lossy, project, mode
):
    # given a network that loses every fifth answer
    number = 600
    near_bus.queue("mail").publish_many(range(number))
    runs = Runs()
    lossy.loses_every = 5

    worker = subscribed(far_bus, mode, runs, visibility=AGES, drain=True)
    worker.run()

    # then no task that this worker knows of was taken for one that it does not
    assert lossy.lost > 3
    assert runs.attempts == once_each(number)
    assert ask(near_bus, "HLEN", Keys(project).attempts("mail", "default", "normal")) == 0


def test_what_a_lost_answer_gave_is_given_back_when_the_worker_is_stopped(
    far_bus, near_bus, lossy, project
):
    # given a worker that is stopped by a task before it looked at what was lost
    near_bus.queue("mail").publish_many(range(100))
    runs = Runs()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        worker.stop()

    worker = subscribed(far_bus, "serial", act, visibility=AGES)
    lossy.loses = digest("ack_and_take").encode()
    worker.run()

    # then another one need not wait for it
    assert (lossy.lost, runs.number) == (1, 1)
    subscribed(near_bus, "serial", runs, visibility=AGES, drain=True).run()
    assert runs.attempts == once_each(100)


def test_no_stale_acknowledgement_counts_because_an_unknown_task_makes_the_number_right(
    far_bus, near_bus, lossy, project
):
    # given a worker that holds twenty tasks that it knows of
    stream, queue = Keys(project).queue("mail"), near_bus.queue("mail")
    queue.publish_many(range(20))
    worker = subscribed(far_bus, "serial", print, visibility=AGES)
    _, batch = worker._do(worker._fetcher.new(20))
    # and one that it does not, since an answer was lost
    other = QueueConsumer(near_bus.scope, "mail", "default", "other")
    queue.publish("unknown")
    _, (task,) = near_bus._run("work", other.ack_and_take({}, 0.0, 1))
    near_bus._run("work", other.retry(task, 0.0))
    lossy.loses = f"\r\n{stream}\r\n".encode()
    assert worker._do(worker._fetcher.retries(10, 0)) == ([], False)
    assert lossy.lost == 1
    # and of the twenty, another has taken one over
    gone = batch[7].entry_id
    ask(near_bus, "XCLAIM", stream, "default", "thief", 0, gone)

    # when it acknowledges the twenty
    ids = [task.entry_id for task in batch]
    ran: list[int] = []
    worker._do(worker._fetcher.ahead(1, {"normal": ids}, 0.0, [], lambda: ran.append(1)))

    # then the one is the other's still
    assert (stats(near_bus, project, "processed"), stats(near_bus, project, "stale")) == (19, 1)
    assert ask(near_bus, "XPENDING", stream, "default", gone, gone, 1)[0][1] == b"thief"
    # and the unknown one is found
    worker._do(worker._reclaimer.recover(lambda _priority: []))
    assert [task.payload for task in worker._reclaimer.strays] == ["unknown"]


def test_tasks_that_were_taken_over_meanwhile_are_not_acknowledged_by_their_number(bus, project):
    # given a consumer that believes it holds twenty tasks, of which another took one over
    queue, stream = bus.queue("mail"), Keys(project).queue("mail")
    queue.publish_many(range(20))
    worker = subscribed(bus, "serial", print, visibility=AGES)
    _, batch = worker._do(worker._fetcher.new(20))
    done, runs = batch[:10], batch[10:]
    ask(bus, "XCLAIM", stream, "default", "thief", 0, done[3].entry_id)

    # when it acknowledges ten of them while the other ten run
    ids = [task.entry_id for task in done]
    worker._do(worker._fetcher.ahead(1, {"normal": ids}, 0.0, runs, lambda: None))

    assert (stats(bus, project, "processed"), stats(bus, project, "stale")) == (9, 1)
    assert left(bus, project) == 11


@on_one_store
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_forgets_all_scripts_in_the_midst_changes_nothing(bus, project, mode):
    number = 1500
    bus.queue("mail").publish_many(range(number))
    runs = Runs()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload % 400 == 0:
            ask(bus, "SCRIPT", "FLUSH")

    worker = subscribed(bus, mode, act, visibility=AGES, drain=True)

    assert worker.run() == number
    assert runs.attempts == once_each(number)
    assert (stats(bus, project, "processed"), left(bus, project)) == (number, 0)


# -- handlers that are slow, or interrupted --


@pytest.mark.parametrize("mode", ["serial", "batches"])
def test_what_was_taken_ahead_of_a_slow_task_runs_once_whoever_runs_it(real_url, project, mode):
    # given a brisk worker, in whose midst one task lasts until another worker takes over what waits
    number = 2000
    runs, overtaken = Runs(), threading.Event()

    def slow(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload == 700:
            began.set()
            assert overtaken.wait(PATIENCE)

    def heir(delivery: Delivery) -> None:
        runs(delivery)
        # Of the 500 tasks that the other one has taken ahead, most are done now.
        if runs.number >= number - 400:
            overtaken.set()

    began = threading.Event()
    with (
        agentbus.connect(real_url, project=project, agent="ada") as bus,
        agentbus.connect(real_url, project=project, agent="bob") as bob,
    ):
        bus.queue("mail").publish_many(range(number))
        worker = subscribed(bus, mode, slow, visibility=1.5, drain=True)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert began.wait(PATIENCE)

        # when that other one works until nothing is left
        other = subscribed(bob, "serial", heir, visibility=1.5)
        second = threading.Thread(target=other.run)
        second.start()
        thread.join(PATIENCE)
        other.stop()
        second.join(PATIENCE)
        subscribed(bob, "serial", runs, visibility=1.5, drain=True).run()

        # then each task ran once
        assert overtaken.is_set()
        assert runs.number == number
        assert {len(found) for found in runs.attempts.values()} == {1}
        assert left(bus, project) == 0


def test_what_is_done_is_not_run_again_because_a_retry_is_slow(real_url, project):
    # given a brisk worker: what it has done is acknowledged with its next request
    number = 1000
    runs = Runs()
    with (
        agentbus.connect(real_url, project=project, agent="ada") as bus,
        agentbus.connect(real_url, project=project, agent="bob") as bob,
    ):
        keys = Keys(project)

        def act(delivery: Delivery) -> None:
            runs(delivery)
            if delivery.payload == 700 and delivery.attempt == 1:
                raise ValueError("once")
            if delivery.payload == 700:
                # when a task that is tried again lasts for longer than the visibility
                done = ask(bob, "HGET", keys.stats("mail"), "processed")
                seen.append((int(done or 0), runs.number))

        seen: list[tuple[int, int]] = []
        bus.queue("mail").publish_many(range(number))
        worker = subscribed(
            bus, "serial", act, visibility=AGES, drain=True, backoff=Backoff(first=0.0)
        )
        worker.run()

        # then all that was done before it is acknowledged before it begins
        ((acknowledged, begun),) = seen
        assert acknowledged == begun - 1


@on_one_store
@pytest.mark.parametrize(
    ("error", "at"),
    [
        (KeyboardInterrupt, 900),
        (SystemExit, 0),
        nightly(KeyboardInterrupt, 0),
        nightly(SystemExit, 900),
    ],
)
@pytest.mark.parametrize("mode", ["serial", "batches", "one coroutine"])
def test_an_interrupted_worker_acknowledges_what_is_done_and_gives_back_the_rest(
    bus, project, mode, error, at
):
    # given a worker whose handler is interrupted
    number = 1500
    bus.queue("mail").publish_many(range(number))
    runs, done = Runs(), []

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload == at and delivery.attempt == 1:
            raise error
        done.append(delivery.payload)

    with pytest.raises(error):
        subscribed(bus, mode, act, visibility=AGES).run()

    # when another one works
    subscribed(bus, mode, act, visibility=AGES, drain=True).run()

    # then it waits for nothing, and only what was interrupted runs again
    assert sorted(set(done)) == list(range(number))
    again = [payload for payload, found in runs.attempts.items() if found != [1]]
    assert runs.attempts[at] == [1, 2]
    assert again == [at] or mode == "batches"
    assert left(bus, project) == 0


@on_one_store
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("mode", ["threads", "coroutines"])
def test_an_exit_in_a_handler_beside_others_fails_its_task_and_leaves_no_place_taken(
    bus, project, mode, error
):
    bus.queue("mail").publish_many(range(40))
    runs = Runs()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload % 4 == 0 and delivery.attempt == 1:
            raise error

    assert subscribed(bus, mode, act, visibility=AGES, drain=True).run() == 40

    assert runs.attempts == {i: [1] if i % 4 else [1, 2] for i in range(40)}


async def test_a_handler_cancelled_before_its_first_step_does_not_hold_its_worker(
    real_url, project
):
    def whole_program() -> None:
        async def main() -> None:
            async with agentbus.aio.connect(real_url, project=project, agent="ada") as bus:
                await bus.queue("mail").publish_many(range(2000))
                loop = asyncio.get_running_loop()
                program = asyncio.current_task()

                def cancel_all() -> None:
                    for task in asyncio.all_tasks() - {program}:
                        task.cancel()

                async def handler(delivery: Any) -> None:
                    await asyncio.sleep(0.001)
                    if len(worker._held()) > 2:
                        # The loop comes to this after it created the next handler's task, and before it
                        # takes that task's first step.
                        loop.call_soon(loop.call_soon, cancel_all)

                worker = bus.subscribe("mail", handler, concurrency=2)
                await asyncio.wait([asyncio.create_task(worker.run())])

        asyncio.run(main())

    thread = threading.Thread(target=whole_program, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, PATIENCE)

    assert not thread.is_alive()


async def test_a_loop_that_ends_takes_its_worker_with_it(real_url, project):
    # given a worker whose handlers all wait, and more tasks that wait for their place
    def whole_program() -> None:
        async def main() -> None:
            async with agentbus.aio.connect(real_url, project=project, agent="ada") as bus:
                queue = bus.queue("mail")
                await queue.publish_many(range(200))
                stuck = asyncio.Event()

                async def handler(delivery: Any) -> None:
                    if delivery.payload >= 100:
                        stuck.set()
                        await asyncio.Event().wait()

                worker = bus.subscribe("mail", handler, concurrency=2)
                working = asyncio.create_task(worker.run())
                await stuck.wait()
                # when everything in the loop is cancelled, as at the end of a program
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.wait([working])

        asyncio.run(main())

    thread = threading.Thread(target=whole_program, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, PATIENCE)

    assert not thread.is_alive()


# -- the end --


@each_mode
def test_stop_in_the_midst_gives_back_without_an_attempt_what_was_not_begun(bus, project, mode):
    number = 1000
    bus.queue("mail").publish_many(range(number))
    runs = Runs()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload == 600:
            worker.stop()

    # given a worker that is stopped within a batch
    worker = subscribed(bus, mode, act, visibility=AGES)
    done = worker.run()

    # then what has run is acknowledged
    assert done == runs.number == stats(bus, project, "processed")
    # and another one does the rest at once, each for the first time
    runs_before = runs.number
    second = subscribed(bus, mode, runs, visibility=AGES, drain=True)
    assert second.run() == number - runs_before
    assert runs.attempts == once_each(number)


def test_a_retry_that_was_taken_and_not_begun_has_not_used_an_attempt(bus):
    # given a task that failed once, and is about to be tried again
    worker = subscribed(bus, "threads", print, visibility=AGES)
    queue = bus.queue("mail")
    queue.publish(1)
    (delivery,) = queue.fetch()
    delivery.retry()
    worker._do(worker._fetcher.prepare())

    # when that does not begin, however often
    for _ in range(5):
        worker._fetcher.look_again()
        (task,), _ = worker._do(worker._fetcher.retries(1, 1))
        assert worker._do(worker._fetcher.admit(task))
        assert task.attempt == 2
        worker._acker.release(task)


@each_mode
def test_count_is_exact_whatever_there_is_to_do(bus, project, mode):
    # given tasks that are new, tried again, given back, and a dead worker's
    queue, keys = bus.queue("mail"), Keys(project)
    queue.publish_many(range(20))
    deliveries = queue.fetch(count=15)
    for delivery in deliveries[:5]:
        delivery.retry()
    worker = subscribed(bus, mode, print, visibility=AGES)
    worker._acker.give_back(worker._do(worker._fetcher.new(3))[1])
    ids = [delivery.id.partition("@")[0] for delivery in deliveries[5:]]
    ask(bus, "XCLAIM", keys.queue("mail"), "default", "dead", 0, *ids, "IDLE", 2 * AGES * 1000)
    runs = Runs()

    for count in (1, 3, 7):
        before = runs.number
        worker = subscribed(bus, mode, runs, visibility=AGES, count=count)
        assert worker.run() == count
        assert runs.number - before == count

    subscribed(bus, mode, runs, visibility=AGES, drain=True).run()
    assert runs.number == 20
    assert {len(found) for found in runs.attempts.values()} == {1}


# -- what others do meanwhile --


@each_mode
def test_all_is_done_though_somebody_destroys_the_group_under_the_worker(bus, project, mode):
    number = 600
    bus.queue("mail").publish_many(range(number))
    runs = Runs()
    destroyed: set[int] = set()

    def act(delivery: Delivery) -> None:
        runs(delivery)
        if delivery.payload in (0, 5, 300, 450) and delivery.payload not in destroyed:
            destroyed.add(delivery.payload)
            ask(bus, "XGROUP", "DESTROY", Keys(project).queue("mail"), "default")

    subscribed(bus, mode, act, visibility=AGES, drain=True).run()

    assert set(runs.attempts) == set(range(number))
    assert left(bus, project) == 0


@each_mode
def test_large_malformed_entries_are_buried_among_sound_ones(bus, project, mode):
    stream, queue = Keys(project).queue("mail"), bus.queue("mail")
    text = "x" * 20_000
    for number in range(12):
        queue.publish({"n": number, "text": text})
        ask(bus, "XADD", stream, "*", "payload", f'{{"text": "{text}', "agent_id", "bob")
    done = []

    def act(delivery: Delivery) -> None:
        done.append((delivery.payload["n"], len(delivery.payload["text"])))

    assert subscribed(bus, mode, act, visibility=AGES, drain=True).run() == 12

    assert sorted(done) == [(number, 20_000) for number in range(12)]
    letters = queue.dead_letters()
    assert len(letters) == 12
    assert all(letter.error.startswith("the entry is malformed") for letter in letters)
    assert left(bus, project) == 0


@each_mode
def test_malformed_entries_are_buried_among_sound_ones(bus, project, mode):
    # given a queue into which another program writes what is no task
    stream, queue = Keys(project).queue("mail"), bus.queue("mail")
    malformed = [("payload", "{"), ("payload", "1", "meta", b"\xff"), (b"\xff", "x")]
    for start in range(0, 300, 20):
        queue.publish_many(range(start, start + 20))
        ask(bus, "XADD", stream, "*", *malformed[start % len(malformed)])
    runs = Runs()

    assert subscribed(bus, mode, runs, visibility=AGES, drain=True).run() == 300

    assert runs.attempts == once_each(300)
    letters = queue.dead_letters()
    assert len(letters) == 15
    assert all(letter.error.startswith("the entry is malformed") for letter in letters)
    assert left(bus, project) == 0
