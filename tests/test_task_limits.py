"""Limits that a task brings along: how often it may run, and when it expires."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.errors import InvalidPayload, TaskBuried, UsageError
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff, Retry
from agentbus.routing import Router, parse
from tests.conftest import Connect
from tests.tiers import on_one_store

SOON = Backoff(first=0.01)
PATIENCE = 60.0
MODES: list[dict[str, Any]] = [{}, {"concurrency": 3}, {"batch": True}]


def drain(bus: agentbus.Bus, handler: Callable[..., Any], **options: Any) -> int:
    return bus.subscribe("mail", handler, drain=True, **{"backoff": SOON, **options}).run()


def later(bus: agentbus.Bus, seconds: float) -> None:
    """Move the time forward that the bus takes for the server's."""
    vars(bus.scope)["server_now"] = lambda: time.time() + seconds


def fail(_work: Any) -> None:
    raise ValueError("broken")


# -- attempts --


@on_one_store
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("attempts", [1, 2, 6])
def test_a_task_may_bring_its_own_number_of_attempts(bus, mode, attempts):
    bus.queue("mail").publish("x", attempts=attempts)

    drain(bus, fail, attempts=3, **mode)

    (letter,) = bus.queue("mail").dead_letters()
    assert (letter.attempts, letter.error) == (attempts, "ValueError: broken")


def test_the_other_tasks_of_its_queue_keep_those_of_the_worker(bus):
    bus.queue("mail").publish_many([agentbus.Task("own", attempts=1), "other"])

    drain(bus, fail, attempts=2)

    assert {one.payload: one.attempts for one in bus.queue("mail").dead_letters()} == {
        "own": 1,
        "other": 2,
    }


def test_a_handler_knows_the_limits_of_its_task(bus):
    seen: list[Any] = []
    bus.queue("mail").publish("x", attempts=2, expires=60)
    bus.queue("mail").publish("y")

    drain(bus, lambda d: seen.append((d.payload, d.attempts, d.expires, d.task.attempts)))

    assert seen == [("x", 2, 60, 2), ("y", None, None, None)]


def test_a_fetched_task_is_buried_after_its_own_attempts(bus):
    queue = bus.queue("mail")
    queue.publish("x", attempts=2)

    # Not settled in time, twice: as by a program that dies.
    assert [d.attempt for d in queue.fetch(visibility=0.001)] == [1]
    found: list[Delivery] = []
    while not found:
        found = queue.fetch(visibility=0.001, block=0.01)
    assert [d.attempt for d in found] == [2]
    while not queue.dead_letters():
        assert queue.fetch(visibility=0.001, block=0.01) == []

    assert "in any of its 2 attempts" in queue.dead_letters()[0].error


KILLED = """
import os, signal, sys
import agentbus

def handler(delivery):
    print(delivery.payload, flush=True)
    if delivery.payload == "poison":
        os.kill(os.getpid(), signal.SIGKILL)

with agentbus.connect(sys.argv[1], project=sys.argv[2], agent="eve") as bus:
    bus.subscribe("mail", handler, visibility=0.05, prefetch=50).run()
"""


def test_a_task_with_one_attempt_never_runs_twice_and_one_that_never_began_is_not_buried(
    real_url, project
):
    ran: list[str] = []
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        queue = bus.queue("mail")
        once = ["first", "poison", *(f"innocent {n}" for n in range(20))]
        queue.publish_many([agentbus.Task(name, attempts=1) for name in once])
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, real_url, project],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        ran += killed.stdout.splitlines()
        assert ran == ["first", "poison"]

        worker = bus.subscribe("mail", lambda d: ran.append(d.payload), visibility=0.05)
        end = time.monotonic() + PATIENCE
        while queue.remaining() and time.monotonic() < end:
            worker.run_once(wait=0.05)
        worker.close()

        assert sorted(ran) == sorted(once)
        (letter,) = queue.dead_letters()
        assert (letter.payload, letter.attempts) == ("poison", 1)
        assert "in its only attempt" in letter.error


def test_a_task_with_one_attempt_that_is_given_back_unstarted_still_has_it(bus, connect):
    bus.queue("mail").publish_many([agentbus.Task(n, attempts=1) for n in range(20)])
    ran: list[int] = []

    def handler(delivery: Delivery) -> None:
        ran.append(delivery.payload)
        stopped.stop()

    stopped = bus.subscribe("mail", handler)
    stopped.run()
    drain(connect("bob"), lambda d: ran.append(d.payload))

    assert sorted(ran) == list(range(20))
    assert bus.queue("mail").dead_letters() == []


def test_a_task_with_one_attempt_that_its_handler_puts_back_has_had_it(bus):
    bus.queue("mail").publish("x", attempts=1)
    ran: list[int] = []

    def handler(delivery: Delivery) -> None:
        ran.append(delivery.attempt)
        delivery.retry(0.0)

    drain(bus, handler)

    assert ran == [1]
    assert "in its only attempt" in bus.queue("mail").dead_letters()[0].error


# -- expiry --


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_expired_task_is_not_run_but_buried(bus, connect, mode):
    queue = bus.queue("mail")
    expired = queue.publish("old", expires=60)
    queue.publish("fresh", expires=600)
    queue.publish("plain")
    seen: list[Any] = []
    late = connect("bob")
    later(late, 120)

    def handler(work: Any) -> None:
        seen.extend(one.payload for one in (work if isinstance(work, list) else [work]))

    drain(late, handler, **mode)

    assert sorted(seen) == ["fresh", "plain"]
    (letter,) = queue.dead_letters()
    assert (letter.task_id, letter.payload, letter.attempts) == (expired, "old", 0)
    assert letter.error.startswith("Expired: the task expired at ")
    with pytest.raises(TaskBuried, match="expired"):
        queue.result(expired)


async def test_an_expired_task_is_not_run_by_an_asynchronous_handler(abus):
    queue = abus.queue("mail")
    await queue.publish("old", expires=60)
    later(abus, 120)  # type: ignore[arg-type]
    seen: list[Any] = []

    async def handler(delivery: Any) -> None:
        seen.append(delivery.payload)

    await abus.subscribe("mail", handler, drain=True).run()

    assert seen == []
    assert [one.payload for one in await queue.dead_letters()] == ["old"]


def test_an_expired_task_is_not_fetched(bus):
    queue = bus.queue("mail")
    queue.publish("old", expires=60)
    queue.publish("fresh")
    later(bus, 120)

    assert [d.payload for d in queue.fetch()] == ["fresh"]
    assert [one.payload for one in queue.dead_letters()] == ["old"]


def test_a_delayed_task_expires_after_it_was_published(bus, connect):
    queue = bus.queue("mail")
    queue.publish("x", delay=0.001, expires=60)
    queue.publish("y", after=queue.publish("z"), expires=60)
    late = connect("bob")
    drain(late, lambda d: None, count=1)
    later(late, 61)

    drain(late, lambda d: None)

    assert sorted(one.payload for one in queue.dead_letters()) == ["x", "y"]


def test_a_routed_task_expires_after_its_publisher_published_it(bus):
    rules = parse("agents: [alice]\ndefault: alice\n", "team.yaml")
    task = bus.queue("incoming").publish("x", expires=60)
    Router(bus, rules, drain=True).run()

    (delivery,) = bus.queue("agent.alice").fetch()

    assert delivery.id == task
    published = int(task.partition("-")[0]) / 1000
    assert delivery.expires_at == pytest.approx(published + 60)


def test_a_task_that_fails_and_would_expire_before_its_next_attempt_is_buried_with_its_error(bus):
    bus.queue("mail").publish("x", expires=60)

    def handler(_delivery: Delivery) -> None:
        raise Retry("not before noon", after=61)

    drain(bus, handler)

    (letter,) = bus.queue("mail").dead_letters()
    assert (letter.attempts, letter.error) == (1, "Retry: not before noon")


def test_the_next_of_an_ordering_key_runs_where_the_one_before_it_expired(bus, connect):
    queue = bus.queue("mail")
    queue.publish("old", ordering_key="k", expires=60)
    queue.publish("next", ordering_key="k")
    seen: list[Any] = []
    late = connect("bob")
    later(late, 120)

    drain(late, lambda d: seen.append(d.payload))

    assert seen == ["next"]


def test_who_asked_for_a_reply_learns_that_the_task_expired(bus, connect):
    bus.queue("mail").publish("old", expires=60, reply_to="answers")
    late = connect("bob")
    later(late, 120)

    drain(late, lambda d: None)

    ((_, answer),) = bus.queue("answers").peek()
    assert answer["ok"] is False
    assert "expired" in answer["error"]


def test_a_dead_letter_that_expired_can_be_replayed(bus, connect):
    queue = bus.queue("mail")
    queue.publish("x", delay=0.001, expires=60)
    late = connect("bob")
    later(late, 120)
    drain(late, lambda d: None)
    seen: list[Any] = []

    queue.replay_all()
    drain(connect("eve"), lambda d: seen.append(d.payload))

    assert seen == ["x"]


# -- refused at once --


@pytest.mark.parametrize(
    "limits",
    [
        *({"attempts": wrong} for wrong in (0, -1, 1.5, True, "3", 1001)),
        *(
            {name: wrong}
            for name in ("expires", "time_limit")
            for wrong in (0, -1, True, "1m", float("nan"), float("inf"), 1e9)
        ),
    ],
    ids=str,
)
def test_a_limit_that_makes_no_sense_is_refused(bus, limits):
    with pytest.raises((UsageError, InvalidPayload)):
        bus.queue("mail").publish("x", **limits)
    with pytest.raises((UsageError, InvalidPayload)):
        bus.queue("mail").publish_many([agentbus.Task("x", **limits)])

    assert bus.queue("mail").peek() == []


@pytest.mark.parametrize(
    "due",
    [{"delay": 60}, {"delay": 61}, {"at": 3600}, {"delay": 60, "after": "1-1@mail"}],
    ids=str,
)
def test_a_task_that_would_expire_before_it_is_due_is_refused(bus, due):
    if "at" in due:
        due = {"at": time.time() + due["at"]}
    with pytest.raises(UsageError, match="expires before it is due"):
        bus.queue("mail").publish("x", expires=60, **due)


@pytest.mark.parametrize(
    "meta",
    [
        *(b'{"expires":"soon"}', b'{"expires":true}', b'{"expires":null}'),
        *(b'{"attempts":0}', b'{"attempts":"x"}', b'{"attempts":1.0}'),
        *(b'{"time_limit":"1"}', b'{"time_limit":true}', b'{"time_limit":-1}'),
    ],
)
def test_limits_that_another_program_wrote_wrongly_are_ignored(bus, meta):
    scope = bus.scope

    def op():
        from agentbus.store.steps import Command

        yield Command("XADD", scope.keys.queue("mail", "normal"), "*", "payload", "1", "meta", meta)

    bus._run("test", op())
    seen: list[Any] = []

    assert drain(bus, lambda d: seen.append(d.payload)) == 1

    assert seen == [1]


def test_many_tasks_with_limits_are_run_once_each(bus: agentbus.Bus, connect: Connect) -> None:
    bus.queue("mail").publish_many(
        [agentbus.Task(n, attempts=1 + n % 3, expires=600) for n in range(300)]
    )
    seen: list[int] = []
    workers = [
        connect(f"w{n}").subscribe("mail", lambda d: seen.append(d.payload), drain=True, concurrency=n)
        for n in (1, 4)
    ]  # fmt: skip
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert sorted(seen) == list(range(300))
    assert bus.queue("mail").dead_letters() == []


@pytest.mark.parametrize("field", ["correlation_id", "causation_id", "source", "tenant"])
@pytest.mark.parametrize("character", ["x", "é"])
def test_a_text_of_the_envelope_is_at_most_8_kib(bus, field, character):
    """Programs get it in their environment, which the system limits."""
    most = 8192 // len(character.encode())
    queue = bus.queue("mail")
    queue.publish(1, **{field: character * most})
    with pytest.raises(InvalidPayload, match=f"the {field} has .* bytes; the limit is 8192"):
        queue.publish(1, **{field: character * (most + 1)})
    with pytest.raises(InvalidPayload):
        queue.publish_many([1], **{field: character * (most + 1)})


def test_all_headers_are_together_at_most_8_kib(bus):
    queue = bus.queue("mail")
    queue.publish(1, headers={"a": "x" * 8180, "b": "y" * 10})
    with pytest.raises(InvalidPayload, match="the headers have 8193 bytes"):
        queue.publish(1, headers={"a": "x" * 8181, "b": "y" * 10})
