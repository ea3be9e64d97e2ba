"""What other programs do to a queue's streams: it is reported, and never in the way of sound tasks."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.queues.delivery import Delivery
from agentbus.queues.ids import PRIORITIES
from agentbus.retry import Backoff, Bury
from tests.servers import ask

SOON = Backoff(first=0.01)
UNREADABLE: list[tuple[str | bytes, ...]] = [
    (b"\xff", "a name that is no text"),
    ("name", b"a value that is no text \xff"),
    ("payload", b"\xff\xfe"),
    ("payload", "{"),
    ("payload", "[" * 5000),
    ("payload", "1", "meta", b"\xff"),
    ("payload", "1", "meta", "[]"),
]


def work(bus: agentbus.Bus, **options: Any) -> list[Any]:
    """Work the queue `mail` until nothing is left, and return what was done."""
    got: list[Any] = []
    bus.subscribe(
        "mail", lambda d: got.append(d.payload), drain=True, backoff=SOON, **options
    ).run()
    return got


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize("words", UNREADABLE, ids=repr)
def test_an_unreadable_entry_is_buried_alone_at_any_priority(
    bus: agentbus.Bus, project: str, words: tuple[str | bytes, ...], priority: str
) -> None:
    queue, stream = bus.queue("mail"), Keys(project).queue("mail", priority)
    queue.publish("before", priority=priority)
    ask(bus, "XADD", stream, "*", *words)
    queue.publish("after", priority=priority)

    assert work(bus) == ["before", "after"]

    (letter,) = queue.dead_letters()
    assert letter.error.startswith("the entry is malformed")
    assert letter.original_id == ask(bus, "XRANGE", stream, "-", "+")[1][0].decode()


def test_who_takes_tasks_by_hand_never_sees_an_unreadable_entry(
    bus: agentbus.Bus, project: str
) -> None:
    queue = bus.queue("mail")
    for words in UNREADABLE:
        ask(bus, "XADD", Keys(project).queue("mail"), "*", *words)
    queue.publish("sound")

    assert [delivery.payload for delivery in queue.fetch(count=10)] == ["sound"]
    assert len(queue.dead_letters()) == len(UNREADABLE)


def test_an_entry_whose_fields_are_any_text_is_delivered_as_they_are(
    bus: agentbus.Bus, project: str
) -> None:
    stream = Keys(project).queue("mail")
    ask(bus, "XADD", stream, "*", "", "", "naïve", "☃", "n", "1\r\n$5\r\n")

    assert work(bus) == [{"": "", "naïve": "☃", "n": "1\r\n$5\r\n"}]


@pytest.mark.parametrize("how", ["XTRIM", "XDEL"])
def test_a_task_that_another_program_removes_while_it_runs_is_done_and_no_letter_says_otherwise(
    bus: agentbus.Bus, project: str, how: str
) -> None:
    queue, keys = bus.queue("mail"), Keys(project)
    queue.publish_many([1, 2])
    done: list[int] = []

    def handler(delivery: Delivery) -> None:
        entry_id = delivery.id.partition("@")[0]
        words = ("MINID", "99999999999999") if how == "XTRIM" else (entry_id,)
        ask(bus, how, keys.queue("mail"), *words)
        done.append(delivery.payload)

    bus.subscribe("mail", handler, drain=True, prefetch=1).run()

    # One that was removed before anybody took it, nobody can know of.
    assert done == ([1] if how == "XTRIM" else [1, 2])
    assert queue.dead_letters() == []
    assert ask(bus, "XPENDING", keys.queue("mail"), "default")[0] == 0


def test_a_task_that_is_removed_while_its_attempt_fails_leaves_a_letter(
    bus: agentbus.Bus, project: str
) -> None:
    queue, keys = bus.queue("mail"), Keys(project)
    queue.publish("gone")
    queue.publish("stays", priority="low")

    def handler(delivery: Delivery) -> None:
        if delivery.payload == "gone":
            ask(bus, "XTRIM", keys.queue("mail"), "MAXLEN", 0)
            raise ValueError("the first attempt fails")

    worker = bus.subscribe("mail", handler, drain=True, backoff=SOON)
    worker.run()

    assert worker.done == 1
    (letter,) = queue.dead_letters()
    assert "trimmed away" in letter.error
    assert ask(bus, "HGET", keys.stats("mail"), "lost") == b"1"


def test_work_goes_on_after_another_program_trimmed_what_nobody_had_taken(
    bus: agentbus.Bus, project: str
) -> None:
    queue = bus.queue("mail", bound=5)
    queue.publish_many(range(5))
    assert work(bus, count=1) == [0]
    ask(bus, "XTRIM", Keys(project).queue("mail"), "MAXLEN", 1)

    queue.publish_many([5, 6, 7])

    assert work(bus) == [4, 5, 6, 7]


def test_acknowledging_by_another_program_ends_a_task_for_us(
    bus: agentbus.Bus, project: str
) -> None:
    # given a task that waits for its next attempt, and one that is held
    queue, stream = bus.queue("mail"), Keys(project).queue("mail")
    queue.publish_many([1, 2])
    first, second = queue.fetch()
    first.retry()

    # when another program acknowledges both
    for entry in ask(bus, "XRANGE", stream, "-", "+"):
        ask(bus, "XACK", stream, "default", entry[0])

    # then there is nothing more to do, and nothing was lost
    assert work(bus) == []
    assert second.ack() is False
    assert queue.dead_letters() == []


# -- what names its work ---------------------------------------------------------------------------


def write(bus: agentbus.Bus, project: str, item: str, **more: str) -> None:
    """Append a task as another program does, with the fields by which it names its work."""
    fields = {"task": "build", "type": "build", "inbox_id": uuid.uuid4().hex, "work_item_id": item}
    fields |= more
    words = [word for pair in fields.items() for word in pair]
    ask(bus, "XADD", Keys(project).queue("agent.alice"), "*", *words)


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}], ids=["serial", "threads"])
def test_work_that_another_program_asked_for_twice_is_done_once(bus, project, options):
    for item in ("w1", "w1", "w2", "w1"):
        write(bus, project, item)
    done: list[str] = []

    bus.subscribe(
        "agent.alice",
        lambda task: done.append(task.payload["work_item_id"]),
        drain=True,
        **options,
    ).run()

    assert sorted(done) == ["w1", "w2"]
    (stats,) = bus.stats("agent.alice")
    assert (stats.lag, stats.dead) == (0, 0)


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}], ids=["serial", "threads"])
def test_an_entry_that_another_program_wrote_twice_is_done_once(bus, project, options):
    for inbox, item in (("in-1", "w1"), ("in-1", "w2"), ("in-2", ""), ("in-2", ""), ("w1", "")):
        write(bus, project, item, inbox_id=inbox)
    done: list[tuple[str, str]] = []

    bus.subscribe(
        "agent.alice",
        lambda task: done.append((task.payload["inbox_id"], task.payload["work_item_id"])),
        drain=True,
        **options,
    ).run()

    assert [one[0] for one in sorted(done)] == ["in-1", "in-2", "w1"]


def test_an_entry_that_was_buried_may_be_written_again(bus, project):
    write(bus, project, "", inbox_id="in-1")
    bus.subscribe("agent.alice", refuse, drain=True).run()
    write(bus, project, "", inbox_id="in-1")

    assert len(bus.queue("agent.alice").fetch(count=10)) == 1


def test_who_takes_tasks_by_hand_gets_work_once(bus, project):
    for item in ("w1", "w1"):
        write(bus, project, item)

    assert len(bus.queue("agent.alice").fetch(count=10)) == 1


def test_work_of_a_killed_worker_is_done(real_shell, real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        write(bus, project, "w1")
    work = ("work", "agent.alice", "--visibility", "0.5", "--count", "1", "--")

    killed = real_shell.run(*work, "sh", "-c", "kill -9 $PPID")
    done = real_shell.run(*work, "true")

    assert killed.returncode == -9
    assert done.stderr.count(" done in ") == 1


def test_work_that_was_buried_may_be_asked_for_again(bus, project):
    write(bus, project, "w1")
    bus.subscribe("agent.alice", refuse, drain=True).run()
    write(bus, project, "w1")
    done: list[Any] = []

    bus.subscribe("agent.alice", done.append, drain=True).run()

    assert len(done) == 1


def test_a_replayed_letter_is_done_although_it_names_its_work(bus, project):
    write(bus, project, "w1")
    bus.subscribe("agent.alice", refuse, drain=True).run()
    (letter,) = bus.queue("agent.alice").dead_letters()
    bus.queue("agent.alice").replay(letter.id)
    done: list[Any] = []

    bus.subscribe("agent.alice", done.append, drain=True).run()

    assert len(done) == 1


def refuse(_delivery: Any) -> None:
    """Bury whatever comes."""
    raise Bury("no")
