"""Replay of a queue: what a group has done comes to it once more, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

import agentbus
from agentbus.core.keys import Keys
from agentbus.core.stream import position
from agentbus.errors import InvalidName, NotFound, UsageError
from agentbus.queues import rerun
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff
from tests.servers import ask

SOON = Backoff(first=0.01)


def drain(bus: agentbus.Bus, group: str = "default", **options: Any) -> list[Any]:
    """Work the queue `mail` until nothing is left, and return the payloads in their order."""
    got: list[Any] = []
    bus.subscribe("mail", lambda d: got.append(d.payload), group=group, drain=True, **options).run()
    return got


def appended(bus: agentbus.Bus, *ids: str) -> None:
    """Append tasks with ids of our choice, as another program might."""
    for one in ids:
        ask(bus, "XADD", bus.scope.keys.queue("mail"), one, "payload", f'"{one}"')


# -- what comes again --


def test_everything_that_was_done_comes_again_in_its_order(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(40))
    assert drain(bus) == list(range(40))

    replayed = queue.replay_from(ids[0])

    assert replayed == rerun.Replayed("mail", "default", 40, 0, ids[0], ids[-1], False)
    assert drain(bus) == list(range(40))
    assert drain(bus) == []


def test_only_what_lies_between_start_and_end_comes_again(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(10))
    drain(bus)

    assert queue.replay_from(ids[3], until=ids[5]).tasks == 3

    assert drain(bus) == [3, 4, 5]


def test_all_priorities_come_again_the_urgent_ones_first(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for priority in ("low", "critical", "normal", "high"):
        queue.publish(priority, priority=priority)
    drain(bus)

    assert queue.replay_from(0).tasks == 4

    assert drain(bus) == ["critical", "high", "normal", "low"]


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        ("1970-01-01T00:00:02Z", None, ["2000-0", "2000-7", "3000-0"]),
        (2.0, 2.0, ["2000-0", "2000-7"]),
        ("2000-1", None, ["2000-7", "3000-0"]),
        ("2000", "2000", ["2000-0", "2000-7"]),
        ("2000-7", "2000-7", ["2000-7"]),
        ("0", "1970-01-01T00:00:01Z", ["1000-0"]),
        ("2000-0@mail", "2000-7@mail", ["2000-0", "2000-7"]),
        ("30m", None, []),
        ("4000-0", None, []),
    ],
)
def test_the_ends_are_ids_or_times(
    bus: agentbus.Bus, start: Any, until: Any, expected: list[str]
) -> None:
    appended(bus, "1000-0", "2000-0", "2000-7", "3000-0")
    drain(bus)

    replayed = bus.queue("mail").replay_from(start, until=until)

    assert replayed.tasks == len(expected)
    assert drain(bus) == expected


def test_a_limit_takes_the_oldest(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(10))
    drain(bus)

    replayed = queue.replay_from(ids[2], limit=3)

    assert (replayed.tasks, replayed.first, replayed.last) == (3, ids[2], ids[4])
    assert drain(bus) == [2, 3, 4]


def test_more_than_one_slice_and_large_entries(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    numbers = queue.publish_many(range(1203))
    queue.publish_many(["x" * 200_000] * 12)
    drain(bus)

    assert queue.replay_from(numbers[0], dry_run=True).tasks == 1215
    assert queue.replay_from(numbers[0]).tasks == 1215
    assert ask(bus, "ZCARD", bus.scope.keys.retries("mail", "default", "normal")) == 1215


# -- what is left alone --


def test_a_dry_run_counts_and_changes_nothing(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(7))
    drain(bus)

    dry = queue.replay_from(ids[0], dry_run=True)

    assert (dry.tasks, dry.first, dry.last, dry.dry_run) == (7, ids[0], ids[-1], True)
    assert drain(bus) == []
    assert queue.replay_from(ids[0]).tasks == 7


def test_tasks_that_run_or_wait_for_a_retry_are_left_alone(bus: agentbus.Bus) -> None:
    # given one task in somebody's hands, one put aside, one done, and one that nobody had yet
    queue = bus.queue("mail")
    first = queue.publish_many(range(3))[0]
    held, aside, done = queue.fetch()
    aside.retry(3600.0)
    done.ack()
    queue.publish(3)

    replayed = queue.replay_from(first)

    assert (replayed.tasks, replayed.pending) == (1, 2)
    (again,) = queue.fetch(count=1)
    assert (again.payload, again.attempt) == (2, 1)
    assert held.ack()


def test_other_groups_see_nothing(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(3))
    drain(bus, "a")
    drain(bus, "b")

    queue.replay_from(0, group="a")

    assert drain(bus, "b") == []
    assert drain(bus, "a") == [0, 1, 2]


def test_nothing_is_copied(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail")
    ids = queue.publish_many(range(3))
    drain(bus)
    seen: list[str] = []

    queue.replay_from(0)
    bus.subscribe("mail", lambda d: seen.append(d.id), drain=True).run()

    assert seen == ids
    assert ask(bus, "XLEN", Keys(project).queue("mail")) == 3


def test_replayed_twice_comes_once(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many(range(3))
    drain(bus)

    queue.replay_from(0)
    again = queue.replay_from(0)

    assert (again.tasks, again.pending) == (0, 3)
    assert drain(bus) == [0, 1, 2]


def test_a_replay_that_died_halfway_is_started_again(bus: agentbus.Bus) -> None:
    # given a replay that ended after its first slice
    queue = bus.queue("mail")
    first = queue.publish_many(range(1100))[0]
    drain(bus)

    def halfway() -> Any:
        op = rerun.replay_from(bus.scope, "mail", "default", first)
        reply = None
        for _ in range(3):
            reply = yield op.send(reply)
        op.close()

    bus._run("replay", halfway())
    waiting = ask(bus, "ZCARD", bus.scope.keys.retries("mail", "default", "normal"))
    assert 0 < waiting < 1100

    # when it is started again
    replayed = queue.replay_from(first)

    # then the rest comes too, and each task once
    assert (replayed.tasks, replayed.pending) == (1100 - waiting, waiting)
    assert drain(bus) == list(range(1100))


# -- how it comes --


def test_a_replayed_task_has_all_its_attempts_again(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("x")
    failed_once: list[int] = []

    def flaky(delivery: Delivery) -> None:
        failed_once.append(delivery.attempt)
        if delivery.attempt == 1:
            raise ValueError("once")

    def failing(delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise ValueError("always")

    bus.subscribe("mail", flaky, drain=True, backoff=SOON).run()
    assert failed_once == [1, 2]

    runs: list[int] = []
    queue.replay_from(0)
    bus.subscribe("mail", failing, drain=True, attempts=3, backoff=SOON).run()

    assert runs == [1, 2, 3]
    assert [letter.attempts for letter in queue.dead_letters()] == [3]


def test_the_bell_rings_so_that_workers_wake(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail")
    queue.publish("x")
    drain(bus)
    before = ask(bus, "XREVRANGE", Keys(project).bell("mail"), "+", "-")

    queue.replay_from(0)

    assert ask(bus, "XREVRANGE", Keys(project).bell("mail"), "+", "-") != before


def test_a_buried_task_comes_again_as_long_as_it_is_kept(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("x")
    bus.subscribe("mail", lambda _: 1 / 0, drain=True, attempts=1).run()

    assert queue.replay_from(0).tasks == 1

    assert drain(bus) == ["x"]


def milliseconds(bus: agentbus.Bus) -> int:
    """Return the server's time."""
    seconds, micros = map(int, ask(bus, "TIME"))
    return seconds * 1000 + micros // 1000


def test_replayed_tasks_are_taken_apart_from_those_that_failed(bus: agentbus.Bus) -> None:
    # given tasks that were replayed, and one that failed before
    queue = bus.queue("mail")
    first = queue.publish_many(range(5))[0]
    for delivery in queue.fetch():
        delivery.ack() if delivery.payload != 2 else delivery.retry()
    # A task that failed in the same millisecond would be due together with the last replayed task.
    failed = milliseconds(bus)
    while milliseconds(bus) == failed:
        pass
    queue.replay_from(first)
    consumption = QueueConsumer(bus.scope, "mail", "default", "me")

    # when a consumer takes what is due
    batches = []
    for _ in range(3):
        tasks, *_ = bus._run("work", consumption.take_retries("normal", 10, firsts=100))
        batches.append([(task.payload, task.attempt) for task in tasks])

    # then each batch is of one kind, and nothing is noted of the replayed ones
    assert batches == [[(2, 0)], [(0, 1), (1, 1), (3, 1), (4, 1)], []]
    assert ask(bus, "HKEYS", consumption.attempts("normal")) == [
        first.replace("-0@mail", "-2").encode()
    ]


def test_a_replayed_task_whose_worker_died_counts_that_as_an_attempt(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("x")
    drain(bus)
    queue.replay_from(0)
    consumption = QueueConsumer(bus.scope, "mail", "default", "dead")
    bus._run("work", consumption.take_retries("normal", 10, firsts=100))

    runs: list[int] = []
    worker = bus.subscribe("mail", lambda d: runs.append(d.attempt), visibility=0.001)
    while not runs:
        worker.run_once()

    assert runs == [2]


# -- what is refused --


def test_a_group_that_is_not_there_is_an_error(bus: agentbus.Bus) -> None:
    with pytest.raises(NotFound):
        bus.queue("mail").replay_from(0)
    bus.queue("mail").publish(1)
    drain(bus)
    with pytest.raises(NotFound):
        bus.queue("mail").replay_from(0, group="other")


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("yesterday", {}),
        ("", {}),
        ("1-1@other", {}),
        ("d7@mail", {}),
        (3.0, {"until": 2.0}),
        (float("nan"), {}),
        (float("inf"), {}),
        (0, {"limit": 0}),
        (0, {"until": "later"}),
    ],
)
def test_what_is_no_point_in_the_queue_is_refused(
    bus: agentbus.Bus, start: Any, options: Any
) -> None:
    bus.queue("mail").publish(1)
    drain(bus)

    with pytest.raises(UsageError):
        bus.queue("mail").replay_from(start, **options)


def test_a_group_must_be_a_name(bus: agentbus.Bus) -> None:
    with pytest.raises(InvalidName):
        bus.queue("mail").replay_from(0, group="")


async def test_the_asynchronous_bus_replays_too(abus: agentbus.AsyncBus) -> None:
    with pytest.raises(NotFound):
        await abus.queue("mail").replay_from(0)


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_tasks_id_is_a_point_that_includes_itself(milliseconds: int, sequence: int) -> None:
    task = f"{milliseconds}-{sequence}@a%3Ab:high"

    assert rerun.point(task, "a:b", 0.0) == f"{milliseconds}-{sequence}"
    assert rerun.point(task, "a:b", 0.0, last=True) == f"{milliseconds}-{sequence}"


@given(st.integers(0, 4_000_000_000_000))
def test_a_moment_begins_before_all_of_its_entries_and_ends_after_them(moment: int) -> None:
    first = position(rerun.point(str(moment), "q", 0.0))
    last = position(rerun.point(str(moment), "q", 0.0, last=True))

    assert first == (moment, 0)
    assert last == (moment, 2**64 - 1)
