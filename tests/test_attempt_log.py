"""The log of attempts: one row for each attempt at a task, whatever way it ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import agentbus
from agentbus.core.stream import text
from agentbus.queues.attempt_log import unpacked
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.policy import Policies
from agentbus.queues.retry import Backoff, Snooze
from agentbus.store.steps import Batch, Command, one_step
from tests.conftest import Connect
from tests.servers import ask

NOW = Backoff(0.0, 0.0)


@pytest.fixture
def logged(connect: Connect) -> agentbus.Bus:
    """A bus whose policies record attempts."""
    bus = connect()
    bus.runner._policies = Policies({"*": {"record_attempts": 1000}}, "test")
    return bus


def rows(bus: agentbus.Bus) -> list[dict[str, Any]]:
    """Return the logged attempts in their order."""
    found = []
    entries = bus.runner.run(one_step(Command("XRANGE", bus.scope.keys.attempt_log, "-", "+")))
    for entry_id, flat in entries:
        named = dict(zip(flat[::2], flat[1::2], strict=True))
        entry = unpacked(text(entry_id), named)
        columns = {name: getattr(entry, name) for name in entry._fields[4:]}
        for at in range(len(entry.tasks)):
            row = {name: column[at] for name, column in columns.items()}
            found.append(row | {"worker": entry.worker, "queue": entry.queue, "group": entry.group})
    return found


def brief(bus: agentbus.Bus) -> list[tuple[str, int, str]]:
    return [(row["tasks"], row["attempts"], row["outcomes"]) for row in rows(bus)]


def test_tasks_that_are_done_have_a_row_each_in_one_entry(logged: agentbus.Bus) -> None:
    ids = logged.queue("mail").publish_many(range(20))

    with logged.subscribe("mail", lambda _: time.sleep(0.001), drain=True) as worker:
        worker.run()

    found = rows(logged)
    assert [row["tasks"] for row in found] == ids
    assert {(row["attempts"], row["outcomes"], row["worker"]) for row in found} == {
        (1, "done", worker.name)
    }
    assert all(0.001 <= row["took"] < 60 and 0 <= row["waited"] < 60 for row in found)
    assert [row["began"] for row in found] == sorted(row["began"] for row in found)
    assert all(abs(row["began"] - time.time()) < 60 for row in found)


def test_a_failure_and_its_retry_have_a_row_each(logged: agentbus.Bus) -> None:
    def handler(delivery: Any) -> None:
        if delivery.attempt == 1:
            # It takes longer than two clocks differ on a loaded machine.
            time.sleep(0.5)
            raise ValueError("no\nand more")

    task = logged.queue("mail").publish(1)

    with logged.subscribe("mail", handler, drain=True, backoff=NOW) as worker:
        worker.run()

    first, second = rows(logged)
    assert (first["tasks"], first["attempts"], first["outcomes"]) == (task, 1, "retried")
    assert first["errors"] == "ValueError: no"
    assert (second["tasks"], second["attempts"], second["outcomes"]) == (task, 2, "done")
    assert second["errors"] is None
    # From when it was due, which is after the first attempt, not from its publication.
    assert second["waited"] <= second["began"] - first["began"] - 0.25


@pytest.mark.parametrize("concurrency", [1, 3])
def test_each_outcome_of_a_handler_is_named(logged: agentbus.Bus, concurrency: int) -> None:
    def handler(delivery: Any) -> int | None:
        match delivery.payload:
            case "result":
                return 1
            case "bury":
                raise agentbus.Bury("bad")
            case "last":
                raise ValueError("again")
            case "snooze" if delivery.attempt == 1 and delivery.payload not in snoozed:
                snoozed.append(delivery.payload)
                raise Snooze(0.01)
            case "acks":
                delivery.ack()
            case "buries":
                delivery.bury("bad")
        return None

    snoozed: list[str] = []
    payloads = ("done", "result", "bury", "last", "snooze", "acks", "buries")
    queue = logged.queue("mail")
    tasks = {queue.publish(one): one for one in payloads}

    options: Any = {"attempts": 2, "concurrency": concurrency, "backoff": NOW, "drain": True}
    with logged.subscribe("mail", handler, **options) as worker:
        worker.run()

    found: dict[str, list[tuple[int, str]]] = {one: [] for one in payloads}
    for row in rows(logged):
        found[tasks[row["tasks"]]].append((row["attempts"], row["outcomes"]))
        assert None not in (row["took"], row["waited"])
    assert found == {
        "done": [(1, "done")],
        "result": [(1, "done")],
        "bury": [(1, "dead")],
        "last": [(1, "retried"), (2, "dead")],
        "snooze": [(1, "snoozed"), (1, "done")],
        "acks": [(1, "done")],
        "buries": [(1, "dead")],
    }


def test_a_batch_shares_its_time_among_its_tasks(logged: agentbus.Bus) -> None:
    logged.queue("mail").publish_many(range(10))

    with logged.subscribe("mail", lambda _: time.sleep(0.05), batch=True, drain=True) as worker:
        worker.run()

    found = rows(logged)
    assert len(found) == 10
    assert 0.05 <= sum(row["took"] for row in found) < 60


def test_what_a_program_fetches_has_rows(logged: agentbus.Bus) -> None:
    queue = logged.queue("mail")
    ids = queue.publish_many(["ack", "retry", "bury"])
    for delivery in queue.fetch(count=3):
        match delivery.payload:
            case "ack":
                delivery.ack()
            case "retry":
                delivery.retry(60)
            case _:
                delivery.bury("no")

    assert brief(logged) == [
        (ids[0], 1, "done"),
        (ids[1], 1, "retried"),
        (ids[2], 1, "dead"),
    ]
    assert all(row["took"] is not None for row in rows(logged))


def test_a_task_that_is_taken_by_hand_has_a_row_with_its_agent(logged: agentbus.Bus) -> None:
    task = logged.queue("mail").publish("x")
    taken = logged.take("mail")
    logged.settle(task, taken.token, "done")

    (row,) = rows(logged)
    assert (row["tasks"], row["attempts"], row["outcomes"]) == (task, 1, "done")
    assert row["worker"] == "hand:ada"
    assert row["took"] > 0


def test_a_task_that_was_held_by_hand_for_too_long_was_cut_off(logged: agentbus.Bus) -> None:
    task = logged.queue("mail").publish("x")
    logged.take("mail", visibility=0.01)

    with logged.subscribe("mail", print, count=1) as worker:
        worker.run()

    first, second = rows(logged)
    assert (first["tasks"], first["attempts"], first["outcomes"]) == (task, 1, "cut_off")
    assert first["worker"] == "hand:ada"
    assert (second["attempts"], second["outcomes"], second["worker"]) == (2, "done", worker.name)


def test_an_attempt_that_a_dead_worker_may_have_begun_was_cut_off(logged: agentbus.Bus) -> None:
    class Died(BaseException):
        pass

    queue = logged.queue("mail")
    urgent = queue.publish("x", priority="high")
    dead = logged.subscribe("mail", print, visibility=0.01)
    # It takes the task, and does not go on.
    dead._do(dead._fetcher.new(5))

    with logged.subscribe("mail", print, visibility=0.01, count=1) as worker:
        worker.run()

    first, second = rows(logged)
    assert (first["tasks"], first["attempts"], first["outcomes"]) == (urgent, 1, "cut_off")
    assert (first["worker"], first["priorities"]) == (dead.name, "high")
    assert (first["began"], first["took"], first["waited"]) == (None, None, None)
    assert (second["attempts"], second["outcomes"], second["worker"]) == (2, "done", worker.name)
    dead.close()


def test_what_a_worker_does_after_it_lost_its_task_has_no_second_row(logged: agentbus.Bus) -> None:
    ids = logged.queue("mail").publish_many(range(3))
    late = logged.subscribe("mail", print, visibility=0.01)
    _, taken = late._do(late._fetcher.new(5))
    done = {"normal": [task.entry_id for task in taken]}
    with logged.subscribe("mail", print, visibility=0.01, count=3) as worker:
        worker.run()

    late._acker.ack(done, 0.0)

    found = brief(logged)
    assert sorted(found) == sorted(
        [*((one, 1, "cut_off") for one in ids), *((one, 2, "done") for one in ids)]
    )
    late.close()


def test_a_task_that_expired_has_a_row_without_a_beginning(logged: agentbus.Bus) -> None:
    entry_id = f"{round((time.time() - 60) * 1000)}-0"
    fields = ("payload", '"x"', "meta", '{"expires":1}')
    ask(logged, "XADD", logged.scope.keys.queue("mail", "normal"), entry_id, *fields)
    task = f"{entry_id}@mail"

    with logged.subscribe("mail", print, drain=True) as worker:
        worker.run()

    (row,) = rows(logged)
    assert (row["tasks"], row["attempts"], row["outcomes"]) == (task, 1, "expired")
    assert (row["began"], row["took"]) == (None, None)


def test_a_cancelled_task_has_a_row_if_it_ran(logged: agentbus.Bus) -> None:
    queue = logged.queue("mail")
    waiting, running = queue.publish("waiting", delay=60), queue.publish("running")
    logged.cancel(waiting)

    async def handler(delivery: Any) -> None:
        await asyncio.to_thread(logged.cancel, delivery.id)
        await asyncio.Event().wait()

    with logged.subscribe("mail", handler, drain=True) as worker:
        worker.run()

    assert brief(logged) == [(running, 1, "cancelled")]


def test_a_delayed_and_typed_task_is_named_as_it_was_published(logged: agentbus.Bus) -> None:
    queue = logged.queue("mail")
    task = queue.publish(agentbus.Task("x", task="greet"), delay=0.01)
    queue.publish("late")
    with logged.subscribe("mail", print, count=2) as worker:
        worker.run()

    named = {row["tasks"]: row["names"] for row in rows(logged)}
    assert named[task] == "greet"
    assert list(named.values()).count(None) == 1


def test_a_coroutine_has_rows(logged: agentbus.Bus) -> None:
    async def handler(_delivery: Any) -> None:
        await asyncio.sleep(0.01)

    logged.queue("mail").publish_many(range(10))
    with logged.subscribe("mail", handler, concurrency=5, drain=True) as worker:
        worker.run()

    found = rows(logged)
    assert len(found) == 10
    assert all(0.01 <= row["took"] < 60 for row in found)


def test_nothing_is_logged_if_the_policy_says_so(logged: agentbus.Bus) -> None:
    bus = logged
    bus.runner._policies = Policies({"*": {"record_attempts": 0}}, "test")
    bus.queue("mail").publish_many(range(3))
    with bus.subscribe("mail", print, drain=True) as worker:
        worker.run()

    assert rows(bus) == []


def test_the_log_keeps_about_as_many_entries_as_the_policy_says(logged: agentbus.Bus) -> None:
    key = logged.scope.keys.attempt_log
    logged.runner._policies = Policies({"*": {"record_attempts": 1}}, "test")
    logged.runner.run(one_step(Batch([("XADD", key, "*", "of", "another")] * 300)))
    logged.queue("mail").publish("x")
    for delivery in logged.queue("mail").fetch():
        delivery.ack()

    # Whole nodes of the stream are trimmed, of 100 entries.
    assert logged.runner.run(one_step(Command("XLEN", key))) <= 100


OF = {b"queue": b"q", b"group": b"g", b"worker": b"w", b"agent": b"a", b"took": b""}


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {b"ids": b"1-1"},
        OF | {b"ids": b"x", b"more": b"", b"began": b""},
        OF | {b"ids": b"1-1 1-2", b"more": b'{"attempt":[[1],[0]]}', b"began": b""},
        OF | {b"ids": b"1-1", b"more": b"", b"began": b"xxxxx"},
        OF | {b"ids": b"1-1", b"more": b"[]", b"began": b""},
        OF | {b"ids": b"1-1", b"more": b"{", b"began": b""},
    ],
)
def test_an_entry_of_another_program_is_refused(entry: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match=r"entry|attempt|JSON|data|length"):
        unpacked("1-1", entry)


def test_what_several_workers_acknowledge_at_once_has_rows(logged: agentbus.Bus) -> None:
    ids = logged.queue("mail").publish_many(range(100))
    consumer = QueueConsumer(logged.scope, "mail", "default", "one", recorded=1000)
    logged.runner.run(consumer.prepare())
    taken = logged.runner.run(consumer.take(100, 0.01))
    assert consumer.log is not None

    for some in (taken[:40], taken[40:]):
        # Of the first ones, it holds others beside them.
        consumer.log.remember(some)
        done = {"normal": [task.entry_id for task in some]}
        assert logged.runner.run(consumer.turn_all_done(done, 0.0, 1)) == ([], [])

    assert brief(logged) == [(one, 1, "done") for one in ids]
