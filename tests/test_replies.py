"""Replies: a task's outcome put where it was wanted, in the step that settles it; and asking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import QueueFull, TaskFailed, TimedOut, UsageError
from tests.conftest import Connect
from tests.servers import Server, ask as plainly
from tests.tiers import on_one_store

Serve = Callable[..., agentbus.Worker]


TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def serve(connect: Connect) -> Iterator[Serve]:
    """Return a function that starts a worker, which ends with the test."""
    running: list[tuple[agentbus.Worker, threading.Thread]] = []

    def start(queue: str, handler: Callable[..., Any], **options: Any) -> agentbus.Worker:
        worker = connect("bob").subscribe(queue, handler, **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread))
        return worker

    yield start
    for worker, thread in running:
        worker.stop()
        thread.join()


def refuse(delivery: agentbus.Delivery) -> None:
    raise agentbus.Bury(f"no {delivery.payload}")


def replies(bus: agentbus.Bus, queue: str = "answers") -> list[Any]:
    return [payload for _, payload in bus.queue(queue).peek(1000)]


# -- reply_to --


def test_a_task_that_is_done_is_answered(bus: agentbus.Bus) -> None:
    task = bus.queue("sums").publish([1, 2], reply_to="answers", traceparent=TRACE)

    bus.subscribe("sums", lambda d: sum(d.payload), drain=True).run()

    (reply,) = bus.queue("answers").fetch()
    assert reply.payload == {
        "ok": True,
        "task_id": task,
        "queue": "sums",
        "group": "default",
        "result": 3,
    }
    assert (reply.correlation_id, reply.causation_id) == (task, task)
    assert reply.traceparent == TRACE


def test_a_reply_keeps_the_tasks_correlation(bus: agentbus.Bus) -> None:
    task = bus.queue("sums").publish(1, reply_to="answers", correlation_id="order-7")

    bus.subscribe("sums", lambda d: d.payload, drain=True).run()

    (reply,) = bus.queue("answers").fetch()
    assert (reply.correlation_id, reply.causation_id) == ("order-7", task)


def test_a_task_that_is_buried_is_answered_with_its_error(bus: agentbus.Bus) -> None:
    task = bus.queue("sums").publish("cake", reply_to="answers")

    bus.subscribe("sums", refuse, drain=True).run()

    assert replies(bus) == [
        {
            "ok": False,
            "task_id": task,
            "queue": "sums",
            "group": "default",
            "error": "Bury: no cake",
        }
    ]


def test_a_task_that_came_to_nothing_is_answered_too(bus: agentbus.Bus) -> None:
    bus.queue("sums").publish(1, reply_to="answers")

    bus.subscribe("sums", lambda _: None, drain=True).run()

    assert [(reply["ok"], reply["result"]) for reply in replies(bus)] == [(True, None)]


def test_tasks_of_a_batch_handler_are_answered_each(bus: agentbus.Bus) -> None:
    for number in range(3):
        bus.queue("sums").publish(number, reply_to="answers", correlation_id=str(number))

    bus.subscribe("sums", lambda _: None, batch=True, drain=True).run()

    answered = bus.queue("answers").fetch()
    assert sorted(reply.correlation_id for reply in answered) == ["0", "1", "2"]


def test_a_failed_attempt_is_not_answered(bus: agentbus.Bus) -> None:
    bus.queue("sums").publish(1, reply_to="answers")
    (delivery,) = bus.queue("sums").fetch()

    assert delivery.retry(0)

    assert replies(bus) == []


def test_a_stale_consumer_answers_nothing(bus: agentbus.Bus, project: str) -> None:
    # given a task that another consumer has taken over
    bus.queue("sums").publish(1, reply_to="answers")
    (delivery,) = bus.queue("sums").fetch()
    stream = Keys(project).queue("sums")
    entry = delivery.id.partition("@")[0]
    plainly(bus, "XCLAIM", stream, "default", "another", 0, entry)

    # when its first consumer comes back
    assert not delivery.ack("late")
    assert not delivery.bury("late")

    # then nobody hears of it
    assert replies(bus) == []


def test_a_task_is_answered_once_however_often_its_end_is_told(bus: agentbus.Bus) -> None:
    bus.queue("sums").publish(1, reply_to="answers")
    (delivery,) = bus.queue("sums").fetch()

    assert delivery.ack("yes")
    assert not delivery.ack("again")

    assert [reply["result"] for reply in replies(bus)] == ["yes"]


def test_a_reply_is_never_refused_at_a_bound(bus: agentbus.Bus) -> None:
    bus.queue("agent.ada").publish_many(range(100))
    with pytest.raises(QueueFull):
        bus.queue("agent.ada").publish(100)
    bus.queue("sums").publish(1, reply_to="agent.ada")

    bus.subscribe("sums", lambda d: d.payload, drain=True).run()

    assert replies(bus, "agent.ada")[-1]["result"] == 1


def test_a_queue_of_replies_is_known_and_counts_them(bus: agentbus.Bus, project: str) -> None:
    bus.queue("sums").publish(1, reply_to="answers")
    bus.subscribe("sums", lambda d: d.payload, drain=True).run()

    assert "answers" in bus.queues()
    assert plainly(bus, "HGET", Keys(project).stats("answers"), "published") == b"1"


def test_each_group_answers(bus: agentbus.Bus) -> None:
    bus.queue("sums").publish(1, reply_to="answers")
    for group in ("one", "two"):
        bus.subscribe("sums", lambda d: d.group, group=group, drain=True).run()

    assert [(reply["group"], reply["result"]) for reply in replies(bus)] == [
        ("one", "one"),
        ("two", "two"),
    ]


def test_a_result_as_large_as_fits_is_told_whole(bus: agentbus.Bus) -> None:
    bus.queue("sums").publish(1, reply_to="answers")

    bus.subscribe("sums", lambda _: "x" * 262_142, drain=True).run()

    assert len(replies(bus)[0]["result"]) == 262_142


@pytest.mark.parametrize("reply_to", [5, "", "\n", {"a": 1}, "x" * 300, "~replies."])
def test_a_foreign_envelope_that_asks_for_the_impossible_is_done_and_counted(
    bus: agentbus.Bus, project: str, reply_to: Any
) -> None:
    meta = orjson.dumps({"reply_to": reply_to, "correlation_id": {"a": "\0"}})
    stream = Keys(project).queue("sums")
    plainly(bus, "XADD", stream, "*", "payload", "1", "meta", meta)

    assert bus.subscribe("sums", lambda d: d.payload, drain=True).run() == 1

    assert plainly(bus, "HGET", Keys(project).stats("sums"), "unanswered") == b"1"


def test_a_reply_to_a_key_of_another_type_keeps_nobody_from_acknowledging(
    bus: agentbus.Bus, project: str
) -> None:
    plainly(bus, "SET", Keys(project).queue("answers"), "theirs")
    bus.queue("sums").publish("done", reply_to="answers")
    bus.queue("sums").publish("buried", reply_to="answers")

    def handler(delivery: agentbus.Delivery) -> str:
        if delivery.payload == "buried":
            refuse(delivery)
        return "yes"

    assert bus.subscribe("sums", handler, drain=True).run() == 1
    assert len(bus.queue("sums").dead_letters()) == 1
    assert plainly(bus, "HGET", Keys(project).stats("sums"), "unanswered") == b"2"


# -- ask --


def test_ask_returns_what_the_handler_returned(bus: agentbus.Bus, serve: Serve) -> None:
    serve("sums", lambda d: {"sum": sum(d.payload)})

    assert bus.ask("sums", [1, 2, 3]) == {"sum": 6}
    assert bus.ask("sums", [4], timeout=None, priority="high", headers={"a": "b"}) == {"sum": 4}


def test_ask_returns_none_where_the_handler_returned_nothing(
    bus: agentbus.Bus, serve: Serve
) -> None:
    serve("sums", lambda _: None)

    assert bus.ask("sums", 1) is None


def test_ask_tells_the_error_of_a_task_that_was_buried(bus: agentbus.Bus, serve: Serve) -> None:
    serve("sums", refuse)

    with pytest.raises(TaskFailed, match="Bury: no cake") as failed:
        bus.ask("sums", "cake")

    assert failed.value.exit_code == 8
    assert "bus.queue('sums').dead_letters" in str(failed.value)
    assert "dlq list sums" in str(failed.value.shell_hint)


def test_ask_gives_up_in_time_and_says_what_may_still_happen(bus: agentbus.Bus) -> None:
    with pytest.raises(TimedOut, match=r"bus\.result") as late:
        bus.ask("sums", 1, timeout=0.05)

    assert "@sums" in late.value.message
    assert [payload for _, payload in bus.queue("sums").peek()] == [1]


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    bus: agentbus.Bus, serve: Serve
) -> None:
    with pytest.raises(TimedOut):
        bus.ask("sums", "first", timeout=0.01)

    serve("sums", lambda d: d.payload)

    assert bus.ask("sums", "second") == "second"


def test_ask_is_refused_where_the_queue_is_full(bus: agentbus.Bus) -> None:
    bus.queue("agent.ada").publish_many(range(100))

    with pytest.raises(QueueFull):
        bus.ask("agent.ada", 1)


@pytest.mark.parametrize(
    "envelope",
    [
        *({"key": "k"}, {"reply_to": "q"}, {"timeout": -1}, {"timeout": "soon"}),
        *({"timeout": float("nan")}, {"priority": "urgent"}),
    ],
    ids=repr,
)
def test_ask_refuses_what_makes_no_sense(bus: agentbus.Bus, envelope: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        bus.ask("sums", 1, **envelope)

    assert bus.queue("sums").peek() == []


def test_threads_that_ask_on_one_bus_get_each_their_own(bus: agentbus.Bus, serve: Serve) -> None:
    serve("sums", lambda d: d.payload * 2)
    got: dict[int, int] = {}

    def one(number: int) -> None:
        got[number] = bus.ask("sums", number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert got == {number: number * 2 for number in range(20)}


@on_one_store
async def test_many_askers_of_one_asynchronous_bus_get_each_their_own(
    abus: agentbus.AsyncBus, serve: Serve
) -> None:
    serve("sums", lambda d: d.payload * 2)

    got = await asyncio.gather(*(abus.ask("sums", number) for number in range(300)))

    assert got == [number * 2 for number in range(300)]


async def test_many_askers_share_their_connections(
    own_server: Server, project: str, tmp_path: Any
) -> None:
    async with agentbus.aio.connect(own_server.url, project=project, agent="ada") as bus:
        asking = [asyncio.ensure_future(bus.ask("sums", number)) for number in range(200)]
        while len(await bus.queue("sums").peek(500)) < 200:
            await asyncio.sleep(0)

        # One for commands, one for the blocked read, and the one that asks here.
        clients = own_server.ask("CLIENT", "LIST").decode().splitlines()
        assert len(clients) <= 3

        with agentbus.connect(own_server.url, project=project, agent="bob") as other:
            worker = other.subscribe("sums", lambda d: d.payload, count=200)
            thread = threading.Thread(target=worker.run)
            thread.start()
            assert await asyncio.gather(*asking) == list(range(200))
            thread.join()


def test_what_was_answered_is_trimmed_away(bus: agentbus.Bus, serve: Serve, project: str) -> None:
    serve("sums", lambda d: d.payload)

    for number in range(130):
        bus.ask("sums", number)

    (stream,) = (key for key in keys_of(bus, project) if ":replies:" in key)
    assert plainly(bus, "XLEN", stream) < 70


def test_private_streams_expire_and_clear_removes_them(
    bus: agentbus.Bus, serve: Serve, project: str
) -> None:
    serve("sums", lambda d: d.payload)
    bus.ask("sums", 1)

    (stream,) = (key for key in keys_of(bus, project) if ":replies:" in key)
    assert 0 < plainly(bus, "TTL", stream) <= 3600
    assert bus.clear()["replies"] == 1


def test_a_result_that_was_asked_for_is_kept_too(bus: agentbus.Bus, serve: Serve) -> None:
    served: list[str] = []

    def handler(delivery: agentbus.Delivery) -> int:
        served.append(delivery.id)
        return 7

    serve("sums", handler)
    bus.ask("sums", 1)

    assert bus.queue("sums").result(served[0]) == 7


def test_ask_outlives_a_restart_of_the_server(own_server: Server, project: str) -> None:
    with agentbus.connect(own_server.url, project=project, agent="ada") as bus:
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(bus.ask("sums", 5, timeout=60)))
        thread.start()
        while not bus.queue("sums").peek():
            pass
        own_server.kill()
        own_server.start()
        with agentbus.connect(own_server.url, project=project, agent="bob") as other:
            other.subscribe("sums", lambda d: d.payload, count=1).run()
        thread.join(60)

    assert got == [5]


def keys_of(bus: agentbus.Bus, project: str) -> list[str]:
    return [key.decode() for key in plainly(bus, "KEYS", f"{project}:*")]
