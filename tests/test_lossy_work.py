"""Workers behind a network that loses answers: what is sent again counts once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from agentbus.store.resp import digest
from agentbus.store.steps import LinkDown
from tests.proxy import Proxy
from tests.servers import ask

SOON = Backoff(first=0.01, longest=0.02)
PATIENCE = 30.0


@pytest.fixture
def lossy(own_server) -> Iterator[Proxy]:
    """A proxy that can lose replies, and the connection with each."""
    with Proxy(own_server.socket) as proxy:
        yield proxy


@pytest.fixture
def far_bus(lossy, project) -> Iterator[agentbus.Bus]:
    """A bus behind that proxy, with all the time in the world."""
    with agentbus.connect(lossy.url, project=project, agent="ada", deadline=60) as bus:
        yield bus


@pytest.fixture
def near_bus(own_server, project) -> Iterator[agentbus.Bus]:
    """A bus that sees what really happened."""
    with agentbus.connect(own_server.url, project=project, agent="auditor") as bus:
        yield bus


def test_an_attempt_whose_beginning_is_told_twice_counts_once(far_bus, near_bus, lossy, project):
    # given a task that a consumer took over from a dead one
    near_bus.queue("mail").publish(1)
    near_bus.queue("mail").fetch(visibility=0.001)
    consumer = QueueConsumer(far_bus.scope, "mail", "default", "me")
    near_bus._run("work", consumer.reclaim("normal", 0.0, "-", 1))
    (task,), *_ = near_bus._run("work", consumer.take_retries("normal", 1))
    assert near_bus._run("work", consumer.begin(task)) == 2

    # when the answer to the beginning of its third attempt is lost
    lossy.loses_every = 1
    op = consumer.begin(task)
    step = next(op)
    with pytest.raises(LinkDown):
        far_bus.runner.link.execute(step)
    lossy.loses_every = 0
    again = far_bus.runner.link.execute(step)

    # then it is the third still, and the next one is the fourth
    assert (lossy.lost, again) == (1, 3)
    assert near_bus._run("work", consumer.begin(task)) == 4


@pytest.mark.parametrize("how", ["finish", "retry", "bury"])
def test_what_becomes_of_a_task_is_told_truly_though_its_answer_was_lost(
    far_bus, near_bus, lossy, project, how
):
    # given two tasks in hand, and a server that knows the script by the first of them
    near_bus.queue("mail").publish_many([1, 2])
    act = {
        "finish": Delivery.ack,
        "retry": lambda task: task.retry(after=60),
        "bury": lambda task: task.bury("no"),
    }
    first, second = far_bus.queue("mail").fetch(count=2)
    assert act[how](first)

    # when the answer for the second is lost, so that it is asked for again
    lossy.loses = digest(how).encode()

    # then it was this consumer's, and counts once
    assert act[how](second)
    assert lossy.lost == 1
    counted = {"finish": "processed", "retry": "retried", "bury": "dead"}[how]
    assert int(ask(near_bus, "HGET", Keys(project).stats("mail"), counted)) == 2
    assert ask(near_bus, "HGET", Keys(project).stats("mail"), "stale") is None


@pytest.mark.parametrize(
    ("script", "outcome", "state"),
    [
        ("set_visibility", "done", "done"),
        ("finish", "done", "done"),
        ("retry", "retry", "retrying"),
        ("bury", "bury", "dead"),
    ],
)
def test_a_task_is_taken_and_settled_by_hand_once_though_an_answer_was_lost(
    far_bus, near_bus, lossy, script, outcome, state
):
    # given a server that knows the scripts by a first task
    near_bus.queue("mail").publish_many([1, 2])
    error = "no" if outcome == "bury" else None
    first = far_bus.take("mail")
    far_bus.settle(first.id, first.token, outcome, error=error)

    # when the answer about the second is lost, so that it is asked for again
    lossy.loses = digest(script).encode()
    second = far_bus.take("mail")
    settled = far_bus.settle(second.id, second.token, outcome, error=error)

    # then its token was good, and it was settled once
    assert lossy.lost == 1
    assert (settled.state, settled.repeated) == (state, False)
    assert near_bus.task(second.id).attempts == 1
    assert not any(one.tasks for one in near_bus.who())
    assert "stale" not in near_bus.stats("mail")[0].counters


def test_no_task_is_buried_because_answers_were_lost(far_bus, near_bus, lossy, project):
    # given tasks that each succeed at their very last attempt
    near_bus.queue("mail").publish_many(range(20))
    runs: dict[int, list[int]] = {number: [] for number in range(20)}

    def handler(delivery: Delivery) -> None:
        runs[delivery.payload].append(delivery.attempt)
        if delivery.attempt < 4:
            raise ValueError("not yet")

    # when every seventh batch of answers is lost
    lossy.loses_every = 7
    worker = far_bus.subscribe("mail", handler, backoff=SOON, visibility=0.3)
    while not _all_settled(near_bus, project):
        worker.run_once(wait=0.05)

    # then none was buried: an answer that is lost is no attempt
    assert near_bus.queue("mail").dead_letters() == []
    assert all(attempts[-1] <= 4 for attempts in runs.values())
    assert lossy.lost > 10


def _all_settled(bus: agentbus.Bus, project: str) -> bool:
    stream = Keys(project).queue("mail")
    groups: Any = ask(bus, "XINFO", "GROUPS", stream) if ask(bus, "EXISTS", stream) else []
    for group in groups:
        info = dict(zip(group[::2], group[1::2], strict=True))
        last = ask(bus, "XREVRANGE", stream, "+", "-", "COUNT", 1)[0][0]
        return info[b"pending"] == 0 and info[b"last-delivered-id"] == last
    return False


# -- a server that is away for longer than the deadline --


@pytest.fixture
def hasty_bus(own_server, project) -> Iterator[agentbus.Bus]:
    """A bus that gives a server up after a moment."""
    with agentbus.connect(own_server.url, project=project, agent="ada", deadline=0.3) as bus:
        yield bus


def in_background(worker: Any) -> tuple[threading.Thread, list[Exception]]:
    """Start a worker, and return its thread and what it raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            worker.run()
        except Exception as error:  # noqa: BLE001 (it is kept)
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("busy", [False, True])
def test_a_worker_outlives_an_outage_much_longer_than_its_deadline(
    hasty_bus, own_server, project, busy
):
    # given a worker that waits for tasks, or is in the middle of one
    inside, go_on = threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> str:
        if delivery.payload == "first":
            inside.set()
            if busy:
                assert go_on.wait(PATIENCE)
        return "done"

    worker = hasty_bus.subscribe("mail", handler, visibility=2.0)
    thread, raised = in_background(worker)
    with agentbus.connect(own_server.url, project=project, agent="bob", deadline=60) as bus:
        first = bus.queue("mail").publish("first")
        assert inside.wait(PATIENCE)
        if not busy:
            assert bus.queue("mail").result(first, wait=PATIENCE) == "done"

        # when the server is away for several of its deadlines
        own_server.kill()
        go_on.set()
        thread.join(4 * hasty_bus.settings.deadline)
        own_server.start()

        # then it goes on as soon as the server is back, without having given up
        second = bus.queue("mail").publish("second")
        assert bus.queue("mail").result(second, wait=PATIENCE) == "done"
        assert bus.queue("mail").result(first, wait=PATIENCE) == "done"
    worker.stop()
    thread.join(PATIENCE)
    assert raised == []


def test_a_worker_that_is_told_to_stop_while_the_server_is_away_stops(hasty_bus, own_server):
    worker = hasty_bus.subscribe("mail", lambda d: d.payload)
    thread, raised = in_background(worker)
    queue = hasty_bus.queue("mail")
    assert queue.result(queue.publish(1), wait=PATIENCE) == 1
    own_server.kill()

    worker.stop()
    thread.join(PATIENCE)

    assert not thread.is_alive()
    assert all(isinstance(error, agentbus.AgentBusError) for error in raised)
