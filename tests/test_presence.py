"""Workers are listed while they live; an order to pause holds once it is confirmed, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

import agentbus
from agentbus.core.keys import Keys, pause_field
from agentbus.errors import InvalidName, InvalidPayload, NotFound, UsageError
from agentbus.queues.consumer import QueueConsumer
from agentbus.store.scope import Intervals, Scope
from agentbus.store.steps import Script
from agentbus.workers.pause import Gate
from agentbus.workers.registry import ALIVE, KEPT, WorkerOrders, WorkerRegistration
from tests.conftest import Connect
from tests.servers import ask
from tests.small_worker import BRISK, PATIENCE, Registry, SmallWorker
from tests.tiers import on_one_store

NAMES = ["mail", "a:b", "100%", "*", "schräg", "x y"]


def age(bus: agentbus.Bus, worker: str, seconds: float) -> None:
    """Make a worker look as if it had been silent for so long."""
    key = bus.scope.keys.beats
    now = int(ask(bus, "TIME")[0]) * 1000
    ask(bus, "ZADD", key, round(now - seconds * 1000), worker)


@pytest.fixture
def intervals() -> Intervals:
    """Workers in this process look around more often than workers of users."""
    return BRISK


@pytest.fixture
def queue(bus: agentbus.Bus) -> agentbus.Queue:
    """The queue `mail`, which has had a task."""
    found: agentbus.Queue = bus.queue("mail")
    found.publish("first")
    (delivery,) = found.fetch()
    delivery.ack()
    return found


# -- the list --


def test_a_worker_lists_itself_with_what_it_does(bus: agentbus.Bus, connect: Connect) -> None:
    Registry(connect("bob"), "mail", "host:1:a").beat(done=7)

    (found,) = bus.workers()

    assert (found.worker, found.agent_id, found.queue, found.group) == (
        *("host:1:a", "bob", "mail", "default"),
    )
    assert (found.state, found.alive, found.done, found.concurrency) == ("working", True, 7, 4)
    assert (found.pid, found.version) == (os.getpid(), agentbus.__version__)
    assert 0 < found.started <= found.seen
    assert found.paused is None


def test_beats_change_the_figures_and_not_the_start(bus: agentbus.Bus) -> None:
    registry = Registry(bus)
    registry.beat(done=1)
    (before,) = bus.workers()
    registry.beat(done=2)

    (after,) = bus.workers()

    assert (before.started, after.done) == (after.started, 2)


def test_pending_tasks_are_counted_over_all_priorities(bus: agentbus.Bus) -> None:
    for priority in ("low", "high", "high"):
        bus.queue("mail").publish(1, priority=priority)
    bus.queue("mail").fetch()
    name = ask(bus, "XINFO", "CONSUMERS", bus.scope.keys.queue("mail", "high"), "default")[0][1]
    Registry(bus, "mail", name.decode()).beat()

    assert [worker.pending for worker in bus.workers()] == [3]


def test_a_silent_worker_is_listed_as_dead(bus: agentbus.Bus) -> None:
    Registry(bus, worker="quiet").beat()
    Registry(bus, worker="lively").beat()
    age(bus, "quiet", ALIVE + 2)

    assert {one.worker: one.alive for one in bus.workers()} == {"quiet": False, "lively": True}


def test_a_clean_end_leaves_nothing(bus: agentbus.Bus) -> None:
    registry = Registry(bus)
    registry.beat()
    bus.pause(worker=registry.worker, wait=0)

    bus._run("unregister", registry.entry.unregister_op())

    assert (bus.workers(), bus.paused()) == ([], [])
    assert not {"beat", "paused"} & set(bus.clear(dry_run=True))


def test_what_was_silent_for_an_hour_is_swept_away_by_the_next_that_comes(
    bus: agentbus.Bus,
) -> None:
    Registry(bus, worker="old").beat()
    bus.pause(worker="old", wait=0)
    age(bus, "old", KEPT + 2)

    Registry(bus, worker="new").beat()

    assert [one.worker for one in bus.workers()] == ["new"]
    assert bus.paused() == []


def test_the_keys_are_cleared_with_the_project(bus: agentbus.Bus) -> None:
    Registry(bus).beat()
    bus.pause(queue="mail", wait=0)

    found = bus.clear()

    assert (found["beat"], found["paused"]) == (2, 1)
    assert bus.clear(dry_run=True) == {}


# -- orders --


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["queue", "agent", "worker"])
def test_an_order_reaches_whom_it_concerns_and_nobody_else(
    bus: agentbus.Bus, connect: Connect, kind: str, name: str
) -> None:
    meant = {"queue": "q", "agent": "a", "worker": "w"} | {kind: name}
    one = Registry(connect(meant["agent"]), meant["queue"], meant["worker"])
    other = Registry(connect("other"), "other", "other")
    one.beat()
    other.beat()

    order = bus.pause(**{kind: name}, why="the moon", wait=0)

    assert (order.kind, order.name, order.by, order.why) == (kind, name, "ada", "the moon")
    assert order.unconfirmed == (meant["worker"],)
    assert one.beat() == WorkerOrders(True, "by ada: the moon", False)
    assert other.beat() == WorkerOrders()
    assert [found.paused for found in bus.workers() if found.worker == meant["worker"]] == [
        "by ada: the moon"
    ]
    assert bus.resume(**{kind: name})
    assert one.beat() == WorkerOrders()


def test_an_order_for_the_whole_project_concerns_all(bus: agentbus.Bus) -> None:
    from agentbus.admin import pause

    registry = Registry(bus)
    registry.beat()

    bus._run("pause", pause.pause(bus.scope, "project", None, "halt", wait=0))

    assert registry.beat().paused
    assert [(order.kind, order.name) for order in bus.paused()] == [("project", None)]
    assert bus._run("resume", pause.resume(bus.scope, "project", None))
    assert not registry.beat().paused


def test_one_order_taken_back_leaves_the_others(bus: agentbus.Bus) -> None:
    registry = Registry(bus)
    registry.beat()
    bus.pause(queue="mail", wait=0)
    bus.pause(agent="ada", wait=0)

    assert [order.kind for order in bus.paused()] == ["agent", "queue"]
    assert bus.resume(agent="ada")
    assert not bus.resume(agent="ada")

    assert registry.beat().paused
    assert bus.resume(queue="mail")
    assert not registry.beat().paused


def test_an_order_that_another_program_has_spoilt_holds_all_the_same(bus: agentbus.Bus) -> None:
    for spoilt in (b"\xff", b"[]", b'{"by": 1}', b"x"):
        ask(bus, "HSET", bus.scope.keys.paused, pause_field("queue", "mail"), spoilt)

        assert Registry(bus).beat().paused
        assert [order.name for order in bus.paused()] == ["mail"]


@pytest.mark.parametrize("subject", [{"queue": "x"}, {"agent": "x"}, {"worker": "x"}], ids=str)
def test_an_unknown_name_is_not_found(bus: agentbus.Bus, subject: dict[str, str]) -> None:
    for verb in (bus.pause, bus.resume):
        with pytest.raises(NotFound):
            verb(**subject)
    if "queue" not in subject:
        with pytest.raises(NotFound):
            bus.delete(**subject)
    assert bus.clear(dry_run=True) == {}


def test_one_thing_must_be_named_and_well(bus: agentbus.Bus) -> None:
    for subject in ({}, {"queue": "a", "agent": "b"}):
        with pytest.raises(UsageError):
            bus.pause(**subject)
    with pytest.raises(InvalidName):
        bus.pause(queue="a\nb")
    with pytest.raises(InvalidPayload):
        bus.queue("mail").pause("")


def test_an_order_outlives_workers_and_holds_for_those_that_come(
    queue: agentbus.Queue, connect: Connect
) -> None:
    assert queue.pause("tidying").confirmed == ()

    with SmallWorker(connect("bob")) as worker:
        queue.publish(1)
        worker.beats()

        assert (worker.ran, worker.gate.held, worker.gate.reason) == ([], True, "by ada: tidying")
        queue.resume()
        worker.has_run(1)


# -- confirmed --


def test_after_pause_nothing_that_is_published_runs_until_resume(
    queue: agentbus.Queue, connect: Connect
) -> None:
    with SmallWorker(connect("bob")) as one, SmallWorker(connect("eve")) as other:
        queue.publish("before")

        order = queue.pause()
        ran = one.ran + other.ran
        queue.publish_many(range(5))
        one.beats()
        other.beats()

        assert sorted(order.confirmed) == sorted([one.name, other.name])
        assert order.unconfirmed == ()
        assert one.ran + other.ran == ran
        assert queue.resume()
        while len(one.ran + other.ran) < 6:
            one.beats(1)
            other.beats(1)
    assert sorted(map(str, one.ran + other.ran)) == ["0", "1", "2", "3", "4", "before"]


def test_pause_and_resume_in_quick_turns_never_let_a_task_slip(
    queue: agentbus.Queue, connect: Connect
) -> None:
    with SmallWorker(connect("bob")) as worker:
        for turn in range(10):
            assert queue.pause().confirmed == (worker.name,)
            ran = len(worker.ran)
            queue.publish(turn)
            assert len(worker.ran) == ran
            worker.beats(1)
            assert len(worker.ran) == ran
            queue.resume()
            if turn % 2:
                worker.has_run(turn + 1)
        worker.has_run(10)
    assert worker.ran == list(range(10))


def test_what_runs_goes_on_while_its_worker_is_paused(
    queue: agentbus.Queue, connect: Connect
) -> None:
    running, go_on = threading.Event(), threading.Event()

    def handler(_payload: object) -> None:
        running.set()
        assert go_on.wait(PATIENCE)

    with SmallWorker(connect("bob"), handler=handler) as worker:
        queue.publish("long")
        assert running.wait(PATIENCE)

        order = queue.pause()
        queue.publish("next")
        go_on.set()
        while not worker.done:
            worker.beats(1)
        worker.beats()

        assert order.confirmed == (worker.name,)
        assert (worker.ran, worker.done) == (["long"], 1)
        queue.resume()


def test_a_paused_agent_or_worker_leaves_the_tasks_to_others(
    queue: agentbus.Queue, bus: agentbus.Bus, connect: Connect
) -> None:
    with SmallWorker(connect("bob")) as bob, SmallWorker(connect("eve")) as eve:
        assert bus.pause(agent="bob").confirmed == (bob.name,)
        queue.publish_many(range(3))
        eve.has_run(3)
        assert bus.pause(worker=eve.name).confirmed == (eve.name,)
        assert bus.resume(agent="bob")
        queue.publish("more")
        bob.has_run(1)

    assert (eve.ran, bob.ran) == ([0, 1, 2], ["more"])


def test_a_worker_that_does_not_confirm_is_named(bus: agentbus.Bus) -> None:
    registry = Registry(bus)
    registry.beat()

    order = bus.pause(queue="mail", wait=0.05)

    assert (order.confirmed, order.unconfirmed) == ((), (registry.worker,))
    registry.beat("paused")
    assert bus.pause(queue="mail", wait=0.05).confirmed == (registry.worker,)


def test_a_dead_worker_is_not_waited_for(bus: agentbus.Bus) -> None:
    registry = Registry(bus)
    registry.beat()
    age(bus, registry.worker, ALIVE + 2)

    order = bus.pause(queue="mail", wait=PATIENCE)

    assert (order.confirmed, order.unconfirmed) == ((), ())


def test_who_was_told_to_go_on_does_not_count_for_the_next_order(bus: agentbus.Bus) -> None:
    # given a worker that was paused, and hears in its beat that it no longer is
    registry = Registry(bus)
    registry.beat()
    bus.pause(queue="mail", wait=0)
    registry.beat("paused")
    bus.resume(queue="mail")
    assert not registry.beat("paused").paused

    # when it is to pause again
    order = bus.pause(queue="mail", wait=0)

    # then what it said before does not confirm
    assert order.unconfirmed == (registry.worker,)


def test_a_beat_that_is_sent_again_confirms_nothing_that_it_did_not_before(
    bus: agentbus.Bus,
) -> None:
    # given a beat whose answer, "go on", may have reached the worker
    registry = Registry(bus)
    registry.beat()
    op = registry.entry.beat_op("paused", 0, 0, 0)
    step = next(op)
    assert isinstance(step, Script)

    def send() -> list[bytes]:
        again = Script(step.script, step.keys, step.argv, writes=True)
        reply = yield again
        return reply[0][:2]

    assert bus._run("beat", send()) == [b"", b""]

    # when its copy arrives after an order
    bus.pause(queue="mail", wait=0)
    bus._run("beat", send())

    # then the worker still counts as working; and an older one changes nothing at all
    assert bus.pause(queue="mail", wait=0).unconfirmed == (registry.worker,)
    registry.beat(done=5)
    bus._run("beat", send())
    assert [(one.state, one.done) for one in bus.workers()] == [("working", 5)]


# -- the lease --


def test_who_has_not_beaten_for_too_long_asks_before_it_runs_a_task(
    bus: agentbus.Bus, queue: agentbus.Queue
) -> None:
    # given a worker that has begun to take, and is then frozen for longer than others wait
    now = [0.0]
    scope = Scope(bus.project, "bob", monotonic=lambda: now[0])
    gate = Gate(
        WorkerRegistration(scope, "frozen", "bob", "mail", "default", 1),
        lambda op: bus._run("work", op),
        stop=lambda: None,
        stopping=lambda: False,
    )
    assert gate.enter()
    age(bus, "frozen", ALIVE + 2)
    now[0] += ALIVE

    # when it is paused meanwhile, by somebody who takes it for dead
    assert queue.pause().unconfirmed == ()

    # then it does not run what it took
    assert not gate.leave()
    assert not gate.enter()
    assert queue.pause().confirmed == ("frozen",)
    queue.resume()
    now[0] += ALIVE
    assert gate.enter()
    assert gate.leave()


def test_a_gate_that_waits_opens_as_soon_as_a_beat_says_so(
    bus: agentbus.Bus, queue: agentbus.Queue
) -> None:
    gate = Gate(
        WorkerRegistration(bus.scope, "one", "bob", "mail", "default", 1),
        lambda op: bus._run("work", op),
        stop=lambda: None,
        stopping=lambda: False,
    )
    queue.pause()
    assert not gate.enter()
    looked: list[bool] = []
    waiting = threading.Thread(target=lambda: looked.append(gate.enter(PATIENCE)))
    waiting.start()

    queue.resume()
    gate.beat()
    waiting.join(PATIENCE)

    assert looked == [False]
    assert gate.enter()


# -- delete --


def test_delete_has_a_worker_leave_after_what_runs(
    queue: agentbus.Queue, bus: agentbus.Bus, connect: Connect
) -> None:
    running, go_on = threading.Event(), threading.Event()

    def handler(_payload: object) -> None:
        running.set()
        assert go_on.wait(PATIENCE)

    with SmallWorker(connect("bob"), handler=handler) as worker:
        queue.publish("long")
        assert running.wait(PATIENCE)

        early = bus.delete(worker=worker.name, wait=0.05)
        go_on.set()
        late = None
        with contextlib.suppress(agentbus.NotFound):
            # It may have left by itself meanwhile.
            late = bus.delete(worker=worker.name, wait=PATIENCE)

        assert worker.ended.wait(PATIENCE)
    assert (early.gone, early.unconfirmed) == ((), (worker.name,))
    assert late is None or late.gone == (worker.name,)
    assert (worker.done, bus.workers()) == (1, [])


def test_delete_of_an_agent_has_all_its_workers_leave(bus: agentbus.Bus, connect: Connect) -> None:
    with (
        SmallWorker(connect("bob")) as one,
        SmallWorker(connect("bob"), "other") as two,
        SmallWorker(connect("eve")) as stays,
    ):
        found = bus.delete(agent="bob")

        assert found.gone == tuple(sorted((one.name, two.name)))
        assert [worker.worker for worker in bus.workers()] == [stays.name]


def dead(bus: agentbus.Bus, connect: Connect, tasks: int) -> str:
    """Leave a worker that took tasks and died; returns its name."""
    queue = bus.queue("mail")
    queue.publish_many(range(tasks))
    assert len(connect("bob").queue("mail").fetch(count=tasks)) == tasks
    stream = bus.scope.keys.queue("mail")
    name: str = ask(bus, "XINFO", "CONSUMERS", stream, "default")[0][1].decode()
    Registry(connect("bob"), "mail", name).beat()
    age(bus, name, ALIVE + 2)
    return name


@on_one_store
def test_delete_hands_over_what_a_dead_worker_holds(bus: agentbus.Bus, connect: Connect) -> None:
    # given a worker that died with more tasks than one script takes
    worker = dead(bus, connect, 1203)

    found = bus.delete(worker=worker)

    # then others get all of them at once, and each counts one attempt that was begun
    assert (found.gone, found.handed_over) == ((worker,), 1203)
    got = {}
    worker_of_eve = connect("eve").subscribe(
        "mail", lambda one: got.setdefault(one.payload, one.attempt) and None, drain=True
    )
    assert worker_of_eve.run() == 1203
    assert got == dict.fromkeys(range(1203), 2)
    stream = bus.scope.keys.queue("mail")
    names = [one[1] for one in ask(bus, "XINFO", "CONSUMERS", stream, "default")]
    assert worker.encode() not in names
    assert bus.workers() == []


def test_what_a_dead_worker_held_and_was_trimmed_away_is_told(
    bus: agentbus.Bus, connect: Connect
) -> None:
    worker = dead(bus, connect, 3)
    ask(bus, "XTRIM", bus.scope.keys.queue("mail"), "MAXLEN", "=", 1)

    found = bus.delete(worker=worker)

    assert found.handed_over == 1
    assert [letter.error for letter in bus.queue("mail").dead_letters()] == [
        "trimmed away before it was done"
    ] * 2


def test_a_worker_that_was_heard_in_time_keeps_what_it_holds(
    bus: agentbus.Bus, connect: Connect, project: str
) -> None:
    worker = dead(bus, connect, 1)
    Registry(bus, "mail", worker).beat()

    found = bus.delete(worker=worker, wait=0)

    assert (found.gone, found.unconfirmed, found.handed_over) == ((), (worker,), 0)
    stream = Keys(project).queue("mail")
    assert ask(bus, "XINFO", "CONSUMERS", stream, "default")[0][3] == 1


def test_what_was_taken_and_not_begun_is_given_back_without_an_attempt(
    bus: agentbus.Bus, connect: Connect
) -> None:
    # given a new task, one that failed before, and one whose worker died
    queue = bus.queue("mail")
    queue.publish_many(["new", "failed", "abandoned"])
    new = QueueConsumer(bus.scope, "mail", "default", "one")
    bus._run("prepare", new.prepare())
    _, (fresh, failed, abandoned) = bus._run("take", new.ack_and_take({}, 0.0, 3))
    failed.attempt = 3
    bus._run("retry", new.retry(failed, 0.0))
    other = QueueConsumer(bus.scope, "mail", "default", "two")
    (again,), *_ = bus._run("work", other.take_retries("normal", 10))
    ask(
        *(bus, "XCLAIM", bus.scope.keys.queue("mail"), "default", "two", 0),
        abandoned.entry_id.decode(),
    )
    abandoned.attempt = 0

    # when they are given back
    assert bus._run("give", new.give_back([fresh, again])) == 1
    assert bus._run("give", other.give_back([again, abandoned])) == 2

    # then others get them, and no attempt was lost or added
    mail = connect("eve").queue("mail")
    got = {one.payload: one.attempt for _ in range(3) for one in mail.fetch()}
    assert got == {"new": 1, "failed": 4, "abandoned": 2}


# -- the other bus --


async def test_the_asynchronous_bus_pauses_and_resumes_too(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail")
    await queue.publish(1)

    order = await queue.pause("night")

    assert await queue.paused() == order
    assert [found.name for found in await abus.paused()] == ["mail"]
    assert await queue.resume()
    assert await queue.paused() is None
    assert await abus.workers() == []
    with pytest.raises(NotFound):
        await abus.delete(agent="nobody")
