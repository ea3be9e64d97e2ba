"""Tasks that wait for others begin when those are done, and are buried when one of them is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues import dependencies, dependents
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from agentbus.store.steps import Script, one_step
from agentbus.testing import published
from tests.conftest import Connect
from tests.profiles import times
from tests.servers import Server, Shell, ask, client
from tests.tiers import on_one_store

SOON = Backoff(first=0.001)


def drain(bus: agentbus.Bus, *queues: str, fails: Any = (), **options: Any) -> list[Any]:
    """Do what is ready, until nothing is, and return the payloads in their order."""
    done: list[Any] = []

    def handler(delivery: Delivery) -> None:
        if delivery.payload in fails:
            raise agentbus.Bury(f"no {delivery.payload}")
        done.append(delivery.payload)

    for queue in queues or ("mail",):
        bus.subscribe(queue, handler, drain=True, **options).run()
    return done


def waiting(bus: agentbus.Bus, queue: str = "mail") -> int:
    return int(ask(bus, "ZCARD", Keys(bus.settings.project).after(queue)))


# Seconds that only a defect needs: what is left to the janitor is done once a minute.
PATIENCE = 150.0


def left_behind(bus: agentbus.Bus) -> int:
    return bus.clear(dry_run=True).get("after", 0)


# -- done --


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_task_begins_when_the_one_that_it_waits_for_is_done(
    bus: agentbus.Bus, concurrency: int
) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first", priority="low")
    second = queue.publish("second", after=first, priority="critical")
    queue.publish("third", after=[first, second], priority="critical")

    assert drain(bus, concurrency=concurrency) == ["first", "second", "third"]
    assert left_behind(bus) == 0


def test_a_task_waits_for_all_of_several_queues(bus: agentbus.Bus) -> None:
    ids = [bus.queue(name).publish(name) for name in ("a", "b:%", "c")]
    bus.queue("mail").publish("last", after=ids)

    for name in ("a", "b:%"):
        assert drain(bus, name, "mail") == [name]
    assert drain(bus, "c", "mail") == ["c", "last"]


def test_a_task_that_waits_for_what_is_done_is_ready_at_once(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first")
    drain(bus)

    second = queue.publish("second", after=[first])
    assert drain(bus) == ["second"]
    queue.publish("third", after=[first, second])

    assert drain(bus) == ["third"]
    assert left_behind(bus) == 0


def test_one_that_failed_is_waited_for_until_it_is_done(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("second", after=queue.publish("first"))
    runs: list[Any] = []

    def handler(delivery: Delivery) -> None:
        runs.append(delivery.payload)
        if len(runs) < 3:
            raise RuntimeError("not yet")

    bus.subscribe("mail", handler, drain=True, backoff=SOON).run()

    assert runs == ["first", "first", "first", "second"]


def test_tasks_taken_by_hand_let_others_go_on(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    second = queue.publish("second", after=queue.publish("first"))

    (delivery,) = queue.fetch(block=60)
    assert queue.fetch() == []
    delivery.ack()

    (delivery,) = queue.fetch(block=60)
    assert (delivery.id, delivery.payload) == (second, "second")


def test_a_task_keeps_its_id_its_envelope_and_its_priority(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first")
    known = queue.publish("second", after=first, priority="high", headers={"a": "b"}, topic="t")
    drain(bus, count=1)

    (delivery,) = queue.fetch(block=60)

    assert (delivery.id, delivery.priority, delivery.attempt) == (known, "high", 1)
    assert (delivery.headers, delivery.topic) == ({"a": "b"}, "t")


def test_the_same_key_is_published_once(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first")

    ids = {queue.publish("second", after=first, key="k") for _ in range(3)}
    assert queue.publish("other", key="k") in ids

    assert len(ids) == 1
    assert drain(bus) == ["first", "second"]


def test_tasks_with_an_ordering_key_take_their_places_when_they_are_ready(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first")
    for number in range(4):
        queue.publish(number, after=first, ordering_key="k")

    done = drain(bus, concurrency=4)

    assert sorted(done[1:]) == [0, 1, 2, 3]
    assert done[0] == "first"


def test_a_delayed_task_is_waited_for_before_and_after_it_is_due(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first", delay=0.05, priority="high")
    queue.publish("second", after=first)
    (delivery,) = queue.fetch(block=60)
    queue.publish("third", after=first)
    delivery.ack()
    queue.publish("fourth", after=first)

    assert sorted(drain(bus)) == ["fourth", "second", "third"]
    assert left_behind(bus) == 0


def test_a_delayed_task_that_waits_for_others_is_ready_when_both_are_over(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first")
    late = queue.publish("late", after=first, delay=3600)
    queue.publish("soon", after=first, delay=0.001)

    assert drain(bus, count=2) == ["first", "soon"]
    keys = Keys(bus.settings.project)
    assert ask(bus, "ZRANGE", keys.delayed("mail"), 0, -1) == [late.encode()]


def test_done_is_what_the_group_says_that_is_waited_for(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    bus.queue("next").publish("default", after=first)
    bus.queue("next").publish("audit", after=first, after_group="audit")

    assert drain(bus, "mail", group="audit") == ["first"]
    assert drain(bus, "next") == ["audit"]
    assert drain(bus, "mail", "next") == ["first", "default"]


@pytest.mark.parametrize("number", [40, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_drain_does_all_that_gets_ready_meanwhile(bus: agentbus.Bus, number: int) -> None:
    queue = bus.queue("mail")
    for one in range(number):
        queue.publish(one, after=queue.publish(one))

    assert sorted(drain(bus)) == sorted([*range(number)] * 2)
    assert left_behind(bus) == 0


@on_one_store
def test_many_tasks_may_wait_for_one(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish(-1)
    for one in range(230):
        bus.queue("mail").publish(one, after=first)

    assert drain(bus) == [-1, *range(230)]


def test_a_drain_does_not_wait_for_what_waits_for_other_queues(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("second", after=bus.queue("other").publish("first"))

    assert drain(bus, "mail") == []
    assert waiting(bus) == 1


async def test_a_task_waits_on_an_asynchronous_bus(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail")
    await queue.publish("second", after=await queue.publish("first"))
    done: list[Any] = []

    async def handler(delivery: Any) -> None:
        done.append(delivery.payload)

    async with abus.subscribe("mail", handler, drain=True) as worker:
        await worker.run()

    assert done == ["first", "second"]


# -- buried --


def test_a_task_is_buried_with_the_reason_when_one_that_it_waits_for_is(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    second = bus.queue("next").publish({"n": 2}, after=first, reply_to="told", priority="high")

    drain(bus, fails=["first"])

    (letter,) = bus.queue("next").dead_letters()
    assert letter.error == f"it waited for {first}, which was buried: Bury: no first"
    assert (letter.payload, letter.task_id, letter.queue) == ({"n": 2}, second, "next")
    with pytest.raises(agentbus.TaskBuried, match="it waited for"):
        bus.queue("next").result(second)
    (reply,) = drain(bus, "told")
    assert (reply["ok"], reply["task_id"], reply["error"]) == (False, second, letter.error)
    assert left_behind(bus) == 0


def test_what_waits_for_two_that_are_buried_has_one_letter(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = [queue.publish(name) for name in "ab"]
    bus.queue("next").publish("c", after=ids)

    drain(bus, fails="ab")

    assert len(bus.queue("next").dead_letters()) == 1
    assert left_behind(bus) == 0


@pytest.mark.parametrize("length", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_whole_chain_is_buried_and_each_letter_names_what_failed_first(
    bus: agentbus.Bus, length: int
) -> None:
    queue = bus.queue("mail")
    before = first = queue.publish("first")
    for number in range(length):
        before = queue.publish(number, after=before)

    drain(bus, fails=["first"])
    bus.tidy()

    letters = queue.dead_letters(limit=length + 1)
    assert [letter.payload for letter in letters] == ["first", *range(length)]
    cause = f"it waited for {first}, which was buried: Bury: no first"
    assert letters[-1].error == f"it waited for {letters[-2].task_id}, which was buried: {cause}"
    assert left_behind(bus) == 0


def test_a_letter_that_is_replayed_runs_and_revives_nobody(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("second", after=queue.publish("first"))
    drain(bus, fails=["first"])
    first, second = queue.dead_letters()

    queue.replay(first.id)
    assert drain(bus) == ["first"]
    queue.replay(second.id)

    assert drain(bus) == ["second"]


def test_letters_lie_in_the_only_group_that_works(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    bus.queue("next").publish("before")
    bus.queue("next").publish("second", after=first)
    drain(bus, "next", group="ops")

    drain(bus, fails=["first"])

    assert [one.payload for one in bus.queue("next").dead_letters("ops")] == ["second"]


# -- refused --


@pytest.mark.parametrize("task_id", ["1-0@mail", "d77@mail", "9999999999999-0@none", "d1@none"])
def test_a_task_of_which_nothing_is_known_is_not_waited_for(
    bus: agentbus.Bus, task_id: str
) -> None:
    bus.queue("mail").publish("first", delay=3600)

    with pytest.raises(agentbus.NotFound, match=task_id):
        bus.queue("mail").publish("second", after=[task_id])

    assert left_behind(bus) == 0


def test_a_task_that_never_was_is_not_waited_for_though_no_group_has_read_its_queue(
    bus: agentbus.Bus,
) -> None:
    bus.queue("mail").publish("first")

    for group in (None, "ops"):
        with pytest.raises(agentbus.NotFound, match="1-0@mail"):
            bus.queue("next").publish("second", after="1-0@mail", after_group=group)
    assert left_behind(bus) == 0


def test_a_delayed_task_that_left_no_note_is_not_waited_for(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first", delay=0)
    drain(bus)
    queue.publish("behind")
    drain(bus)
    ask(bus, "DEL", Keys(bus.settings.project).result(first))

    with pytest.raises(agentbus.NotFound, match=first):
        queue.publish("second", after=first)


def test_a_task_that_was_buried_is_not_waited_for(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    first = queue.publish("first")
    drain(bus, fails=["first"])

    with pytest.raises(agentbus.Refused, match="no first"):
        queue.publish("second", after=first)


@pytest.mark.parametrize("after", ["nonsense", ["x@"], [7], ["1-0@mail"] * 3 + [""]])
def test_what_is_no_task_id_is_refused(bus: agentbus.Bus, after: Any) -> None:
    with pytest.raises(agentbus.UsageError):
        bus.queue("mail").publish("second", after=after)


def test_tasks_that_wait_count_against_the_bound(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=3)
    first = queue.publish("first")
    queue.publish("second", after=first)
    queue.publish("third", after=first)

    with pytest.raises(agentbus.QueueFull):
        queue.publish("fourth", after=first)
    with pytest.raises(agentbus.QueueFull):
        queue.publish("fourth", delay=60)

    assert drain(bus) == ["first", "second", "third"]


def test_the_figures_tell_how_many_wait_and_clear_removes_them(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    for number in range(3):
        bus.queue("next").publish(number, after=first)

    assert [one.blocked for one in bus.stats("next")] == [3]
    assert bus.clear()["after"] == 3
    assert waiting(bus, "next") == 0


# -- at once, and whatever dies --


def test_a_publish_whose_answer_was_lost_is_done_once(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")

    def twice() -> Any:
        op = dependencies.publish(bus.scope, "mail", "second", [first])
        step = next(op)
        replies = [(yield step), (yield step)]
        assert replies[0] == replies[1]
        try:
            op.send(replies[1])
        except StopIteration as ended:
            return ended.value

    task_id = bus._run("publish", twice())

    assert waiting(bus) == 1
    assert task_id.endswith("@mail")
    assert drain(bus) == ["first", "second"]


def test_publishing_races_with_the_end_of_what_is_waited_for(connect: Connect) -> None:
    publisher, worker = connect("ada"), connect("bob")
    queue, done = publisher.queue("mail"), []

    def handler(delivery: Delivery) -> None:
        done.append(delivery.payload)

    one = worker.subscribe("mail", handler)
    for number in range(40):
        first = queue.publish(["first", number])
        start = threading.Barrier(2)

        def work(start: threading.Barrier = start) -> None:
            start.wait(20)
            one.run_once(wait=20)

        thread = threading.Thread(target=work)
        thread.start()
        start.wait(20)
        # Sometimes it is published before that one is done, sometimes after.
        for _ in range(random.Random(number).randrange(8)):
            ask(publisher, "PING")
        queue.publish(["second", number], after=first)
        thread.join()
        one.run_once()
        assert done == [["first", number], ["second", number]]
        done.clear()
    one.close()
    assert left_behind(publisher) == 0


DIES = """
import os, signal, sys
import agentbus
from agentbus.queues import consumer, settle, turns

def dies(_scope):
    os.kill(os.getpid(), signal.SIGKILL)
    yield

consumer.passed_on = settle.passed_on = turns.passed_on = dies

def handler(delivery):
    if delivery.payload == "bad":
        raise agentbus.Bury("no")

with agentbus.connect(sys.argv[1], project=sys.argv[2], agent="ada") as bus:
    bus.subscribe("mail", handler, drain=True).run()
"""


@pytest.mark.parametrize("payload", ["good", "bad"])
def test_what_a_worker_and_the_server_died_before_telling_is_told_by_others(
    own_server: Server, payload: str
) -> None:
    # given a worker that is killed between a task's end and the telling of those that wait
    with agentbus.connect(own_server.url, project="p", agent="ada") as bus:
        first = bus.queue("mail").publish(payload, correlation_id="c")
        bus.queue("next").publish("second", after=first)
        words = [sys.executable, "-c", DIES, own_server.url, "p"]
        assert subprocess.run(words, check=False, timeout=60).returncode == -9
        assert waiting(bus, "next") == 1

        # when the server dies, too, and any worker of the project lives after that
        own_server.kill()
        own_server.start()
        done = drain(bus, "next")

        # then it is told
        assert done == (["second"] if payload == "good" else [])
        assert len(bus.queue("next").dead_letters()) == (payload == "bad")
        assert left_behind(bus) == 0


WORKS = """
import sys
import agentbus

with agentbus.connect(sys.argv[1], project=sys.argv[2], agent="ada") as bus:
    import redis
    raw = redis.Redis.from_url(sys.argv[1])
    def handler(delivery):
        raw.rpush(sys.argv[2] + ":seen", delivery.payload)
    bus.subscribe("mail", handler, visibility=0.5, concurrency=3).run()
"""


def test_whatever_workers_are_killed_all_is_done_in_its_order(own_server: Server) -> None:
    layers, width = 3, 5
    raw = client(own_server.url)
    words = [sys.executable, "-c", WORKS, own_server.url, "p"]
    seen: list[int] = []
    with agentbus.connect(own_server.url, project="p", agent="ada") as bus:
        queue, before = bus.queue("mail"), []
        for layer in range(layers):
            before = [
                queue.publish(layer * width + at, after=before or None) for at in range(width)
            ]
        workers = [subprocess.Popen(words) for _ in range(2)]
        try:
            while set(seen) != set(range(layers * width)):
                # redis-py gives up after 5 s, which a busy machine may take for one of them.
                while not (found := raw.blpop(["p:seen"], timeout=1)):
                    assert all(worker.poll() is None for worker in workers)
                seen.append(int(found[1]))
                if len(seen) % 4 == 0 and len(seen) < layers * width:
                    # when one is killed, another takes its place
                    workers[0].kill()
                    workers[0].wait()
                    workers = [*workers[1:], subprocess.Popen(words)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        firsts = [seen.index(number) for number in range(layers * width)]
        for layer in range(1, layers):
            above = firsts[(layer - 1) * width : layer * width]
            assert max(above) < min(firsts[layer * width : (layer + 1) * width])
        assert waiting(bus) == 0


def test_what_another_program_acknowledged_is_told_by_the_janitor(bus: agentbus.Bus) -> None:
    queue, keys = bus.queue("mail"), Keys(bus.settings.project)
    first = queue.publish("first")
    bus.queue("next").publish("second", after=first)
    queue.fetch(block=5)
    ask(bus, "XACK", keys.queue("mail"), "default", first.partition("@")[0])

    bus.tidy()

    assert drain(bus, "next") == ["second"]


@pytest.mark.parametrize("delay", [None, 0.001])
def test_what_waits_for_one_that_was_trimmed_away_is_buried(
    bus: agentbus.Bus, delay: float | None
) -> None:
    queue, keys = bus.queue("mail"), Keys(bus.settings.project)
    first = queue.publish("first", delay=delay)
    second = bus.queue("next").publish("second", after=first)
    assert [task.payload for task in queue.fetch(block=60, visibility=0.001)] == ["first"]
    queue.publish("behind")
    ask(bus, "XTRIM", keys.queue("mail"), "MAXLEN", 1)

    # Its worker is not heard of again; another finds what is left of it.
    other = QueueConsumer(bus.scope, "mail", "default", "other")
    bus._run("reclaim", other.reclaim("normal", 0.0, "-", 10))
    if delay is not None:
        # What its id was went with it.
        bus.tidy()

    (letter,) = bus.queue("next").dead_letters()
    assert letter.task_id == second
    assert "was trimmed" in letter.error
    assert left_behind(bus) == 0


def test_a_note_of_another_programs_is_forgotten(bus: agentbus.Bus) -> None:
    settled = Keys(bus.settings.project).settled
    ask(bus, "HSET", settled, "nonsense", "+", "d7@no\nwhere", "+")

    bus.tidy()

    assert ask(bus, "EXISTS", settled) == 0


def test_tests_see_what_was_published_to_wait(bus: agentbus.Bus) -> None:
    first = bus.queue("mail").publish("first")
    second = bus.queue("next").publish("second", after=first, priority="high")

    (found,) = published(bus, "next")

    assert (found.id, found.payload, found.priority) == (second, "second", "high")


def test_what_waits_for_one_that_was_dropped_at_the_bound_is_buried(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=1)
    first = queue.publish("first")
    bus.queue("next").publish("second", after=first)

    queue.publish("newer", on_full="trim")
    assert drain(bus) == ["newer"]
    bus.tidy()

    (letter,) = bus.queue("next").dead_letters()
    assert letter.error.startswith(f"it waited for {first}")


def test_a_key_that_another_program_spoilt_keeps_nobody_from_acknowledging(
    bus: agentbus.Bus,
) -> None:
    queue, keys = bus.queue("mail"), Keys(bus.settings.project)
    queue.publish("plain")
    queue.publish("noted", delay=0)
    ask(bus, "SET", keys.awaited("mail"), "spoilt")

    assert sorted(drain(bus)) == ["noted", "plain"]
    assert bus.stats("mail")[0].pending == 0


# -- against a model --


class Node:
    """A task of a random graph: what it waits for, and how it is published and ends."""

    def __init__(self, draw: Callable[[Any], Any], number: int) -> None:
        before = list(range(number))
        self.number = number
        self.after = draw(st.sets(st.sampled_from(before), max_size=3)) if before else set()
        self.fails = draw(st.integers(0, 7)) == 0
        self.queue = draw(st.sampled_from(["a", "b"]))
        self.priority = draw(st.sampled_from(["low", "normal", "critical"]))
        self.delay = draw(st.sampled_from([None, None, 0.0]))
        self.keyed = draw(st.booleans())

    def __repr__(self) -> str:
        return (
            f"{self.number}{'!' if self.fails else ''} after {sorted(self.after)} in {self.queue}"
        )


@st.composite
def graphs(draw: Callable[[Any], Any]) -> list[Node]:
    return [Node(draw, number) for number in range(draw(st.integers(1, 30)))]


@on_one_store
@settings(parent=times(0.2), suppress_health_check=list(HealthCheck))
@given(nodes=graphs(), concurrency=st.sampled_from([1, 3]), late=st.integers(0, 30))
def test_exactly_those_run_whose_dependencies_are_done_and_after_them(
    bus: agentbus.Bus, nodes: list[Node], concurrency: int, late: int
) -> None:
    bus.clear()
    ids: dict[int, str] = {}
    refused: set[int] = set()
    done: list[int] = []
    doomed = {number for number, node in enumerate(nodes) if node.fails}
    for node in nodes:
        if node.after & doomed:
            doomed.add(node.number)

    def handler(delivery: Delivery) -> None:
        if nodes[delivery.payload].fails:
            raise agentbus.Bury(f"no {delivery.payload}")
        done.append(delivery.payload)

    def work(expected: int = 0) -> None:
        until = time.monotonic() + PATIENCE
        with (
            bus.subscribe("a", handler, concurrency=concurrency) as one,
            bus.subscribe("b", handler) as other,
        ):
            before = -1
            # A pass may bury nothing while another worker has the janitor's duties.
            while before != (before := ended()) or (
                (before < expected or (expected and left_behind(bus))) and time.monotonic() < until
            ):
                one.run_once()
                other.run_once()

    def ended() -> int:
        return len(done) + sum(int(row.dead) for row in bus.stats())

    # when some are published before any is done, and some after
    for node in nodes:
        if node.number == late:
            work()
        if node.after & refused:
            refused.add(node.number)
            continue
        try:
            ids[node.number] = bus.queue(node.queue).publish(
                node.number,
                after=[ids[one] for one in sorted(node.after)],
                delay=node.delay,
                priority=node.priority,
                key=f"k{node.number}" if node.keyed else None,
            )
        except agentbus.Refused:
            assert node.after & doomed
            refused.add(node.number)
    work(len(nodes) - len(refused))

    # then those run whose dependencies are done, each once and after them
    assert sorted(done) == [node.number for node in nodes if node.number not in doomed]
    for node in nodes:
        if node.number not in doomed:
            assert all(done.index(one) < done.index(node.number) for one in node.after)
    # and the others are buried, with the reason
    letters = {
        letter.payload: letter
        for queue in ("a", "b")
        for letter in bus.queue(queue).dead_letters(limit=1000)
    }
    assert set(letters) == doomed - refused
    for number, letter in letters.items():
        if not nodes[number].fails or nodes[number].after & doomed:
            culprits = {ids[one] for one in nodes[number].after & doomed}
            assert letter.error.split()[3].rstrip(",") in culprits
    assert left_behind(bus) == 0


# -- the shell --


def test_the_shell_publishes_tasks_that_wait(real_shell: Shell) -> None:
    first = real_shell.run("publish", "mail", "first").stdout.strip()
    second = real_shell.run("publish", "mail", "second", "--after", first)
    assert second.returncode == 0

    table = real_shell.run("bus", "stats", "mail", "--json").stdout
    assert '"blocked":1' in table.replace(" ", "")

    real_shell.run("work", "mail", "--drain", "--", "sh", "-c", "exit 65")
    gone = real_shell.run("publish", "mail", "third", "--after", first)
    assert gone.returncode == 4
    unknown = real_shell.run("publish", "mail", "third", "--after", "1-0@mail")
    assert unknown.returncode == 5
    lines = real_shell.run("publish", "mail", "x", "--after-group", "g")
    assert lines.returncode == 2


def test_what_is_told_takes_bounded_time_and_goes_on_later(bus: agentbus.Bus) -> None:
    # given more to tell than a moment's worth
    first = bus.queue("mail").publish("first")
    before = first
    for number in range(5):
        before = bus.queue("next").publish(number, after=before)
    settled = Keys(bus.settings.project).settled
    ask(bus, "HSET", settled, f"{first}\ndefault", "!gone")

    # when one is told at a time
    bus._run("resolve", dependents.resolve(bus.scope, -1.0))
    assert len(bus.queue("next").dead_letters()) == 1
    bus._run("resolve", dependents.resolve(bus.scope))

    assert len(bus.queue("next").dead_letters()) == 5


def test_a_review_leaves_alone_what_names_the_first_failure_of_a_chain(bus: agentbus.Bus) -> None:
    # given a dependent that was buried when there was no more time for those of its own
    first = bus.queue("mail").publish("first")
    second = bus.queue("mail").publish("second", after=first)
    bus.queue("mail").publish("third", after=second)
    keys = Keys(bus.settings.project)
    ask(bus, "HSET", keys.settled, f"{first}\ndefault", "!gone")
    bus._run("resolve", dependents.resolve(bus.scope, -1.0))
    recorded = ask(bus, "HGETALL", keys.settled)

    # when a review finds its letter, too, whose error only names the one before
    step = Script(
        "record_outcome", (keys.settled, keys.awaited("mail")), (second, "default", "!it", "")
    )
    noted = bus._run("review", one_step(step))

    assert noted == 1
    assert ask(bus, "HGETALL", keys.settled) == recorded
    assert len(recorded) == 2
