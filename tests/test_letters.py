"""Dead letters: what failed for good is kept whole with its real error, and comes back once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import AgentBusError, NotFound, UsageError
from agentbus.queues.dead_letters import Letter
from agentbus.queues.delivery import Delivery
from agentbus.retry import Backoff, Bury
from tests.conftest import Connect
from tests.servers import ask

SOON = Backoff(first=0.01)


def drain(bus: agentbus.Bus, handler: Callable[..., Any], **options: Any) -> int:
    """Work the queue `mail` until nothing is left, and return how many tasks were done."""
    return bus.subscribe("mail", handler, drain=True, **{"backoff": SOON, **options}).run()


def buried(bus: agentbus.Bus, *payloads: Any, **envelope: Any) -> list[Letter]:
    """Return the letters of tasks that were buried just now."""
    queue = bus.queue("mail")
    for payload in payloads:
        queue.publish(payload, **envelope)
    for delivery in queue.fetch(count=len(payloads)):
        delivery.bury("broken")
    return queue.dead_letters()


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_a_task_is_buried_after_exactly_its_attempts(bus: agentbus.Bus, attempts: int) -> None:
    task = bus.queue("mail").publish({"a": [1]}, correlation_id="c")
    runs: list[int] = []

    def handler(delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise ValueError("the real error")

    drain(bus, handler, attempts=attempts)

    assert runs == list(range(1, attempts + 1))
    (letter,) = bus.queue("mail").dead_letters()
    assert letter.error == "ValueError: the real error"
    assert "in handler" in letter.traceback
    assert (letter.payload, letter.attempts, letter.task_id) == ({"a": [1]}, attempts, task)


def test_a_handler_may_bury_at_once(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)

    def handler(delivery: Delivery) -> None:
        raise Bury("hopeless")

    drain(bus, handler)

    (letter,) = bus.queue("mail").dead_letters()
    assert (letter.error, letter.attempts) == ("Bury: hopeless", 1)


def test_malformed_entries_are_buried_alone_and_never_in_the_way(
    bus: agentbus.Bus, project: str
) -> None:
    # given sound tasks between entries that nobody can read
    queue, stream, got = bus.queue("mail"), Keys(project).queue("mail"), []
    for number, bad in enumerate((b"{bad", b"\xff\xfe", b"", b"[" * 5000)):
        queue.publish(number)
        ask(bus, "XADD", stream, "*", "payload", bad)
    ask(bus, "XADD", stream, "*", "payload", "1", "meta", "[]")
    ask(bus, "XADD", stream, "*", b"\xff", "no text")
    queue.publish(4)

    assert drain(bus, lambda d: got.append(d.payload)) == 5

    assert got == [0, 1, 2, 3, 4]
    letters = queue.dead_letters()
    assert len(letters) == 6
    assert all(letter.error.startswith("the entry is malformed") for letter in letters)


def test_entries_of_other_programs_are_delivered_as_their_fields(
    bus: agentbus.Bus, project: str
) -> None:
    got: list[Any] = []
    ask(bus, "XADD", Keys(project).queue("mail"), "*", "task", "build", "type", "t")

    drain(bus, lambda d: got.append(d.payload))

    assert got == [{"task": "build", "type": "t"}]


def test_an_entry_of_thousands_of_fields_is_buried_like_any_other(
    bus: agentbus.Bus, project: str
) -> None:
    words = [word for number in range(5000) for word in (f"f{number}", "v")]
    ask(bus, "XADD", Keys(project).queue("mail"), "*", *words)

    drain(bus, lambda d: 1 / 0, attempts=1)

    (letter,) = bus.queue("mail").dead_letters()
    assert len(letter.payload) == 5000


def test_entries_trimmed_away_under_the_group_become_tombstones(
    bus: agentbus.Bus, project: str
) -> None:
    # given two tasks that someone holds, one of them put aside, and another program that trims
    queue, keys = bus.queue("mail"), Keys(project)
    queue.publish_many([1, 2])
    _, aside = queue.fetch(visibility=0.001)
    aside.retry()
    ask(bus, "XTRIM", keys.queue("mail"), "MAXLEN", 0)

    # when a worker would take them over
    worker = bus.subscribe("mail", print, visibility=0.001)
    for _ in range(3):
        worker.run_once()

    # then they are counted as lost, and nothing waits any longer
    assert ask(bus, "HGET", keys.stats("mail"), "lost") == b"2"
    assert [letter.payload for letter in queue.dead_letters()] == [None, None]
    assert all("trimmed" in letter.error for letter in queue.dead_letters())
    assert ask(bus, "XPENDING", keys.queue("mail"), "default")[0] == 0


# -- replay --


def test_replay_publishes_the_task_anew_with_its_envelope(bus: agentbus.Bus) -> None:
    # given a dead letter of a task with all that an envelope carries
    queue, got = bus.queue("mail"), []
    envelope = {
        "key": "k",
        "correlation_id": "c",
        "causation_id": "b",
        "reply_to": "answers",
        "headers": {"h": "v"},
        "tenant": "t",
        "source": "s",
    }
    (letter,) = buried(bus, {"a": 1}, priority="high", **envelope)

    # when it is replayed
    task = queue.replay(letter.id)

    # then the task comes as new, as it was
    def handler(delivery: Delivery) -> str:
        got.append((delivery.payload, delivery.priority, delivery.attempt))
        got.append({name: getattr(delivery, name) for name in envelope})
        return "done"

    assert drain(bus, handler) == 1
    assert got == [({"a": 1}, "high", 1), envelope]
    assert queue.result(task) == "done"


def test_replay_happens_once_and_says_where_the_task_went(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    (letter,) = buried(bus, 1)
    assert letter.replayed is None

    task = queue.replay(letter.id)

    assert queue.replay(letter.id) == task
    assert queue.dead_letters()[0].replayed == task
    assert drain(bus, lambda _: None) == 1


def test_replays_at_the_same_moment_publish_one_task(bus: agentbus.Bus, connect: Connect) -> None:
    (letter,) = buried(bus, 1)
    start, ids = threading.Barrier(8), []

    def replay(other: agentbus.Bus) -> None:
        start.wait(30)
        ids.append(other.queue("mail").replay(letter.id))

    threads = [threading.Thread(target=replay, args=(connect(f"a{i}"),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(ids) == 8
    assert len(set(ids)) == 1
    assert drain(bus, lambda _: None) == 1


def test_replay_into_another_queue(bus: agentbus.Bus) -> None:
    (letter,) = buried(bus, 1)

    task = bus.queue("mail").replay(letter.id, to="hospital")

    assert bus.queue("hospital").peek() == [(task, 1)]
    assert task.endswith("@hospital")
    assert "hospital" in bus.queues()


def test_a_task_that_was_delayed_gets_a_new_id_on_replay(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    old = queue.publish(1, delay=0.0)
    drain(bus, lambda _: 1 / 0, attempts=1)
    (letter,) = queue.dead_letters()
    assert letter.task_id == old

    new = queue.replay(letter.id)
    drain(bus, lambda d: d.id)

    assert new != old
    assert queue.result(new) == new


@pytest.mark.parametrize("field", ["error", "queue", "priority", "id", "attempts"])
def test_replay_keeps_every_field_of_another_programs_entry(
    bus: agentbus.Bus, project: str, field: str
) -> None:
    queue, got = bus.queue("mail"), []
    entry = {"task": "build", field: "theirs"}
    words = [word for pair in entry.items() for word in pair]
    ask(bus, "XADD", Keys(project).queue("mail"), "*", *words)
    drain(bus, lambda _: 1 / 0, attempts=1)
    (letter,) = queue.dead_letters()
    assert letter.payload == entry
    assert letter.error.startswith("ZeroDivisionError")

    queue.replay(letter.id)

    drain(bus, lambda d: got.append(d.payload))
    assert got == [entry]


def test_a_tombstone_cannot_be_replayed(bus: agentbus.Bus, project: str) -> None:
    queue = bus.queue("mail")
    queue.publish(1)
    queue.fetch(visibility=0.001)
    ask(bus, "XTRIM", Keys(project).queue("mail"), "MAXLEN", 0)
    bus.subscribe("mail", print, visibility=0.001).run_once()
    (letter,) = queue.dead_letters()

    with pytest.raises(UsageError):
        queue.replay(letter.id)


@pytest.mark.parametrize("letter_id", ["1-1", "nonsense", "", "-", "+", "0", "1-1@mail"])
def test_replay_of_a_letter_that_is_not_there_says_so(bus: agentbus.Bus, letter_id: str) -> None:
    buried(bus, 1)

    with pytest.raises((NotFound, UsageError)):
        bus.queue("mail").replay(letter_id)


def test_dead_letters_of_groups_are_apart(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish(1)
    drain(bus, lambda _: 1 / 0, attempts=1, group="bad")
    drain(bus, lambda _: None, group="good")

    assert len(bus.queue("mail").dead_letters(group="bad")) == 1
    assert bus.queue("mail").dead_letters(group="good") == []


def test_dead_letters_come_oldest_first_and_limited(bus: agentbus.Bus) -> None:
    buried(bus, *range(5))

    assert [letter.payload for letter in bus.queue("mail").dead_letters(limit=3)] == [0, 1, 2]


# -- purge --


def test_purge_removes_those_named_and_keeps_the_rest_as_they_were(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    letters = buried(bus, 1, 2, 3)
    task = queue.replay(letters[2].id)

    assert queue.purge(letters[1].id) == 1
    assert queue.purge(letters[1].id, "1-1") == 0

    assert [letter.id for letter in queue.dead_letters()] == [letters[0].id, letters[2].id]
    assert [letter.payload for letter in queue.dead_letters()] == [1, 3]
    assert queue.replay(letters[2].id) == task


def test_purge_without_ids_removes_all(bus: agentbus.Bus) -> None:
    buried(bus, 1, 2, 3)

    assert bus.queue("mail").purge() == 3

    assert bus.queue("mail").dead_letters() == []
    assert bus.queue("mail").purge() == 0


def test_a_letter_after_a_purge_has_an_id_of_its_own(bus: agentbus.Bus) -> None:
    queue = bus.queue("mail")
    (old,) = buried(bus, 1)
    queue.purge(old.id)

    (new,) = buried(bus, 2)

    assert new.id != old.id
    assert new.replayed is None


def test_a_letter_can_be_read_by_any_program(bus: agentbus.Bus, project: str) -> None:
    buried(bus, {"a": 1})

    ((_, flat),) = ask(bus, "XRANGE", Keys(project).dead_letters("mail", "default"), "-", "+")

    named = dict(zip(flat[::2], flat[1::2], strict=True))
    assert json.loads(named[b"payload"]) == {"a": 1}
    assert named[b"error"] == b"broken"
    assert named[b"queue"] == b"mail"


def test_a_server_that_trimmed_the_letters_is_no_error(bus: agentbus.Bus, project: str) -> None:
    (letter,) = buried(bus, 1)
    ask(bus, "DEL", Keys(project).dead_letters("mail", "default"))

    assert bus.queue("mail").dead_letters() == []
    with pytest.raises(AgentBusError):
        bus.queue("mail").replay(letter.id)
