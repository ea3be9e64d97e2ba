"""Publishing: what is accepted, what is refused, and what the bound, keys, delays and results promise."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import InvalidName, InvalidPayload, NotFound, QueueFull, TimedOut, UsageError
from tests.conftest import Connect
from tests.servers import ask


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@dataclasses.dataclass
class Order:
    text: str
    price: float


def test_publish_returns_an_id_that_names_the_queue_and_the_priority(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")

    normal, high = queue.publish(1), queue.publish(2, priority="high")

    assert normal.endswith("@mail")
    assert high.endswith("@mail:high")


def test_publish_many_returns_an_id_for_each_task_in_order(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")

    ids = queue.publish_many(range(1201))

    assert [payload for _, payload in queue.peek(2000)] == list(range(1201))
    assert [found for found, _ in queue.peek(2000)] == ids


@pytest.mark.parametrize(
    "payload",
    [
        *(float("nan"), [float("inf")], {"a": {"b": float("-inf")}}, "a\0b", {"a\0": 1}, ["\0"]),
        *(b"bytes", {"a": b"bytes"}, {1, 2}, {1: "one"}, object(), "\ud800", {"\udcff": 1}),
        *(2**64, -(2**63) - 1, 10**400, nested(300), "x" * 262_145, Order("a\0b", 1.0)),
        Order("a", float("nan")),
    ],
    ids=lambda payload: repr(payload)[:20].encode("ascii", "backslashreplace").decode(),
)
def test_publish_refuses_what_a_later_sink_cannot_hold(bus: agentbus.Bus, payload: Any) -> None:
    queue = bus.queue("mail")

    with pytest.raises(InvalidPayload):
        queue.publish(payload)
    with pytest.raises(InvalidPayload):
        queue.publish_many([1, payload])

    assert queue.peek() == []


@pytest.mark.parametrize(
    "payload",
    [
        "\\u0000",
        "null",
        None,
        {},
        "",
        0,
        nested(200),
        "x" * 262_142,
        2**63,
        -(2**63),
        "é\u2028\x1b",
    ],
    ids=lambda payload: repr(payload)[:20].encode("ascii", "backslashreplace").decode(),
)
def test_publish_delivers_odd_but_sound_payloads_unchanged(bus: agentbus.Bus, payload: Any) -> None:
    queue = bus.queue("mail")

    queue.publish(payload)
    queue.publish(payload, delay=0)

    got: list[Any] = []
    bus.subscribe("mail", lambda delivery: got.append(delivery.payload), drain=True).run()
    assert got == [payload, payload]


@pytest.mark.parametrize(
    "envelope",
    [
        *({"headers": {"a": "\0"}}, {"headers": {"a": 1}}, {"correlation_id": "\0"}),
        *({"correlation_id": "\ud800"}, {"traceparent": "\udcff"}, {"tenant": b"x"}),
    ],
    ids=repr,
)
def test_publish_refuses_a_hostile_envelope(bus: agentbus.Bus, envelope: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        bus.queue("mail").publish(1, **envelope)


@pytest.mark.parametrize(
    "options",
    [
        *({"priority": "urgent"}, {"delay": -1}, {"delay": float("nan")}, {"delay": "1"}),
        *({"at": float("inf")}, {"at": -1}, {"delay": 1, "at": 1}, {"key": ""}, {"key": "a\nb"}),
        *({"reply_to": "\0"}, {"on_full": "explode"}),
    ],
    ids=repr,
)
def test_publish_refuses_options_that_make_no_sense(
    bus: agentbus.Bus, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        bus.queue("mail").publish(1, **options)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "\ud800"])
def test_names_of_queues_and_groups_are_checked_everywhere(bus: agentbus.Bus, name: str) -> None:
    queue = bus.queue("mail")

    with pytest.raises(InvalidName):
        bus.queue(name)
    with pytest.raises(InvalidName):
        bus.subscribe(name, print)
    with pytest.raises(InvalidName):
        bus.subscribe("mail", print, group=name)
    with pytest.raises(InvalidName):
        queue.fetch(group=name)
    with pytest.raises(InvalidName):
        queue.dead_letters(group=name)


def test_a_queue_whose_name_ends_like_a_priority_is_a_queue_of_its_own(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("ours", priority="high")
    bus.queue("mail:high").publish("theirs")

    assert [payload for _, payload in bus.queue("mail").peek()] == ["ours"]
    assert [payload for _, payload in bus.queue("mail:high").peek()] == ["theirs"]


# -- the bound --


def test_publish_is_refused_exactly_at_the_bound(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=5)

    queue.publish_many(range(5))

    with pytest.raises(QueueFull, match="5"):
        queue.publish(5)
    assert [payload for _, payload in queue.peek()] == [0, 1, 2, 3, 4]


def test_there_is_room_again_for_exactly_as_many_as_were_done(bus: agentbus.Bus) -> None:
    # given a full queue of which three tasks were done
    queue = bus.queue("mail", bound=10)
    queue.publish_many(range(10))
    assert bus.subscribe("mail", lambda _: None, count=3).run() == 3

    # when it is filled again
    for number in range(3):
        queue.publish(10 + number)

    # then three fit and no more, and nothing that was not done has gone
    with pytest.raises(QueueFull):
        queue.publish(13)
    assert [payload for _, payload in queue.peek(20)] == list(range(3, 13))


def test_what_one_group_has_not_done_counts_for_the_bound(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=4)
    queue.publish(0)
    (waiting,) = queue.fetch(group="slow")
    queue.publish_many([1, 2, 3])
    bus.subscribe("mail", lambda _: None, group="fast", drain=True).run()

    with pytest.raises(QueueFull):
        queue.publish(4)

    assert waiting.ack()
    assert queue.publish(4)


def test_a_delayed_task_is_refused_at_the_bound_and_fits_after_work(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=3)
    queue.publish_many([1, 2, 3])
    with pytest.raises(QueueFull):
        queue.publish(4, delay=60)

    bus.subscribe("mail", lambda _: None, drain=True).run()

    assert queue.publish(4, delay=60)


def test_publish_many_beyond_the_bound_says_so_and_keeps_what_was_accepted(
    bus: agentbus.Bus,
) -> None:
    queue = bus.queue("mail", bound=700)

    with pytest.raises(QueueFull):
        queue.publish_many(range(2000))

    kept = [payload for _, payload in queue.peek(2000)]
    assert kept == list(range(len(kept)))
    assert 500 <= len(kept) <= 700


def test_on_full_trim_drops_the_oldest_and_counts_them(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail", bound=3)
    queue.publish_many([1, 2, 3])

    queue.publish(4, on_full="trim")

    assert [payload for _, payload in queue.peek()] == [2, 3, 4]
    assert ask(bus, "HGET", Keys(project).stats("mail"), "dropped") == b"1"


def test_on_full_trim_never_exceeds_the_bound(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=3)

    queue.publish_many(range(8), on_full="trim")

    assert [payload for _, payload in queue.peek()] == [5, 6, 7]


# -- keys --


def test_the_same_key_publishes_once_and_returns_the_first_id(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")

    first, second = queue.publish(1, key="k"), queue.publish(2, key="k")

    assert first == second
    assert [payload for _, payload in queue.peek()] == [1]
    assert queue.publish(3, key="other") != first


def test_a_key_counts_in_its_own_queue_only(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1, key="k")
    bus.queue("post").publish(2, key="k")

    assert [payload for _, payload in bus.queue("post").peek()] == [2]


def test_a_delayed_task_with_a_key_is_published_once(bus: agentbus.Bus) -> None:
    queue, got = bus.queue("mail"), []

    first = queue.publish(1, key="k", delay=0.05)
    assert queue.publish(2, key="k", delay=0.05) == first
    assert queue.publish(3, key="k") == first

    bus.subscribe("mail", lambda d: got.append((d.id, d.payload)), count=1).run()
    assert got == [(first, 1)]


def test_a_key_of_a_refused_task_is_free(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail", bound=1)
    queue.publish(0)
    with pytest.raises(QueueFull):
        queue.publish(1, key="k")
    bus.subscribe("mail", lambda _: None, drain=True).run()

    queue.publish(1, key="k")

    assert [payload for _, payload in queue.peek()] == [1]


# -- delays --


def test_a_delayed_task_comes_not_before_its_time(bus: agentbus.Bus) -> None:
    queue, late = bus.queue("mail"), []
    due = time.time() + 0.2
    queue.publish("later", at=due)
    queue.publish("now")

    bus.subscribe("mail", lambda d: late.append((d.payload, time.time() - due)), count=2).run()

    assert [payload for payload, _ in late] == ["now", "later"]
    # The server tells time in whole milliseconds.
    assert late[1][1] > -0.002


def test_a_delayed_task_reaches_a_worker_that_waits(bus: agentbus.Bus, connect: Connect) -> None:
    # given a worker that has done its first task and waits for more
    queue = bus.queue("mail")
    worker = connect("bob").subscribe("mail", lambda d: d.payload, count=2)
    first = queue.publish("first")
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert queue.result(first, wait=30) == "first"

    # when a task is published for a moment from now
    later = queue.publish("later", delay=0.1)

    # then it is done, and the worker ends
    assert queue.result(later, wait=30) == "later"
    thread.join(30)
    assert not thread.is_alive()


def test_a_delayed_task_keeps_its_id_priority_and_envelope(bus: agentbus.Bus) -> None:
    queue, got = bus.queue("mail"), []
    published = queue.publish(
        {"a": 1}, delay=0.05, priority="low", correlation_id="c", headers={"h": "v"}
    )

    def handler(delivery: agentbus.Delivery) -> int:
        got.append((delivery.id, delivery.priority, delivery.correlation_id, delivery.headers))
        return 7

    bus.subscribe("mail", handler, count=1).run()

    assert got == [(published, "low", "c", {"h": "v"})]
    assert queue.result(published) == 7


def test_many_delayed_tasks_all_come_in_their_time(bus: agentbus.Bus) -> None:
    queue, got = bus.queue("mail"), []
    for number in range(60):
        queue.publish(number, delay=number / 100)

    bus.subscribe("mail", lambda d: got.append(d.payload), count=60).run()

    assert sorted(got) == list(range(60))


# -- results --


def test_result_is_what_the_handler_returned(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    ids = [queue.publish(n, priority=p) for n, p in enumerate(("normal", "high"))]

    bus.subscribe("mail", lambda d: {"double": d.payload * 2}, drain=True).run()

    assert [queue.result(i) for i in ids] == [{"double": 0}, {"double": 2}]


def test_result_waits_for_a_task_that_is_not_done(bus: agentbus.Bus, connect: Connect) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)
    worker = connect("bob").subscribe("mail", lambda _: "done", count=1)
    thread = threading.Thread(target=worker.run)
    thread.start()

    assert queue.result(task, wait=30) == "done"
    thread.join(30)


def test_result_of_an_unfinished_task_is_not_there(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    task = queue.publish(1)

    with pytest.raises(NotFound):
        queue.result(task)
    with pytest.raises(TimedOut):
        queue.result(task, wait=0.01)


def test_peek_shows_the_highest_priority_first_and_takes_nothing(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    for priority in ("low", "normal", "critical", "high"):
        queue.publish(priority, priority=priority)

    assert [payload for _, payload in queue.peek(3)] == ["critical", "high", "normal"]
    assert len(queue.peek()) == 4


async def test_an_asynchronous_bus_publishes_the_same(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue("mail", bound=2)

    ids = await queue.publish_many([1, 2])

    assert [found for found, _ in await queue.peek()] == ids
    with pytest.raises(QueueFull):
        await queue.publish(3)


def test_what_a_dead_fetcher_held_is_handed_out_again(connect: Connect) -> None:
    # given a task in the hands of a program that is gone, or has forgotten it
    queue = connect("ada").queue("mail")
    task = queue.publish(1)
    assert [task.attempt for task in queue.fetch(visibility=0.01)] == [1]

    # when another one fetches after the visibility
    other = connect("bob").queue("mail")
    found: list[Any] = []
    while not found:
        found = other.fetch(visibility=0.01, block=0.02)

    # then it gets the task, as the next attempt
    assert [(one.id, one.attempt) for one in found] == [(task, 2)]
    assert found[0].ack()


def test_a_task_that_nobody_ever_acknowledges_is_buried(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish("poison")
    attempts: list[int] = []

    while not queue.dead_letters():
        attempts += [one.attempt for one in queue.fetch(visibility=0.001, block=0.01)]

    assert attempts == [1, 2, 3, 4]
    assert queue.fetch(visibility=0.001) == []


def test_tasks_that_are_published_together_may_share_an_envelope(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    own = agentbus.Task("own", tenant="acme", priority="high")

    ids = queue.publish_many(["a", own, "b"], tenant="shop", correlation_id="c", priority="low")
    ids += queue.publish_stream(["c"], tenant="shop")

    found = {one.payload: one for one in queue.fetch()}
    assert [found[name].id for name in ("a", "own", "b", "c")] == ids
    assert [found[name].tenant for name in ("a", "own", "b", "c")] == [
        "shop",
        "acme",
        "shop",
        "shop",
    ]
    assert [found[name].correlation_id for name in ("a", "own", "b", "c")] == [
        *("c", "c", "c"),
        found["c"].id,
    ]
    assert [found[name].priority for name in ("a", "own", "b", "c")] == [
        "low",
        "high",
        "low",
        "normal",
    ]


def test_a_shared_envelope_with_an_ordering_key_keeps_the_order(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    queue.publish_many([1, 2], ordering_key="k")

    (first,) = queue.fetch()
    assert (first.payload, queue.fetch()) == (1, [])
    first.ack()
    assert [one.payload for one in queue.fetch()] == [2]


def test_a_full_queue_makes_room_for_tasks_with_a_shared_envelope(connect: Connect) -> None:
    queue = connect("eve").queue("mail", bound=3)
    for expected in ([1, 2, 3], [4, 5, 6]):
        queue.publish_many(expected, tenant="shop")
        found = queue.fetch()
        assert [(one.payload, one.tenant) for one in found] == [(n, "shop") for n in expected]
        assert all(one.ack() for one in found)


def test_a_shared_envelope_that_makes_no_sense_is_refused_before_anything_is_published(
    bus: agentbus.Bus,
) -> None:
    with pytest.raises(UsageError):
        bus.queue("mail").publish_many(["a"], attempts=0)

    assert bus.queue("mail").peek() == []
