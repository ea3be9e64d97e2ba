"""Tasks that another program forged keep nobody from sound ones."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.retry import Backoff
from tests.servers import ask

SOON = Backoff(first=0.001)
# What is no body of a delayed task, nor of one that waits for others.
FORGED = [
    *("", "x", "[]", "{}", "null", '["normal"]', '["nowhere","","","mail","0","payload","1"]'),
    *('["normal","","payload"]', '["normal","",{},"mail","0","payload","1"]', "[" * 5000),
    *('["normal","","soon","mail","0","payload","1"]', '["normal","","","mail","0",null,null]'),
]


def done(bus: agentbus.Bus) -> list[object]:
    """Work the queue `mail` until nothing is left, and return what was done."""
    found: list[object] = []
    bus.subscribe("mail", lambda t: found.append(t.payload), drain=True, backoff=SOON).run()
    return found


def test_delayed_tasks_of_any_form_are_buried_beside_sound_ones(bus: agentbus.Bus) -> None:
    keys, queue = Keys(bus.project), bus.queue("mail")
    queue.publish("delayed", delay=0.001)
    for number, body in enumerate(FORGED):
        ask(bus, "HSET", keys.bodies("mail"), f"f{number}", body)
        ask(bus, "ZADD", keys.delayed("mail"), number, f"f{number}")
    ask(bus, "ZADD", keys.delayed("mail"), "inf", "never")
    queue.publish("sound")

    assert {one.state for one in queue.inspect()} == {"delayed", "waiting"}
    assert sorted(map(str, done(bus))) == ["delayed", "sound"]
    assert len(queue.dead_letters()) == len(FORGED)


@pytest.mark.parametrize("verdict", ["+", "!it failed"])
def test_dependents_of_any_form_are_buried_beside_sound_ones(
    bus: agentbus.Bus, verdict: str
) -> None:
    keys, queue = Keys(bus.project), bus.queue("mail")
    first = queue.publish("first")
    queue.publish("dependent", after=[first])
    for number, body in enumerate(FORGED):
        name, mark = f"d{number + 7}@mail", f"0-1@mail\ndefault\n01d{number + 7}@mail"
        ask(bus, "HSET", keys.after_bodies("mail"), name, body)
        ask(bus, "ZADD", keys.after("mail"), 1, name)
        ask(bus, "ZADD", keys.awaited("mail"), 0, mark, 0, "0-1@mail\ndefault")
    ask(bus, "HSET", keys.settled, "0-1@mail\ndefault", verdict)

    assert {one.state for one in queue.inspect()} == {"blocked", "waiting"}
    assert done(bus) == ["first", "dependent"]
    assert len(queue.dead_letters()) == len(FORGED)


def test_letters_of_any_form_are_listed_beside_sound_ones(bus: agentbus.Bus) -> None:
    queue, letters = bus.queue("mail"), Keys(bus.project).dead_letters("mail", "default")
    queue.publish(1)
    queue.fetch()[0].bury("no")
    for attempts in ("²", "9" * 5_000):
        ask(bus, "XADD", letters, "*", "payload", "2", "priority", "x:y", "attempts", attempts)

    assert [one.attempts for one in queue.dead_letters()] == [1, 0, 0]
    assert all(task.endswith("@mail") for task in queue.replay_all())


def test_a_task_with_a_forged_id_or_attempt_is_done_beside_sound_ones(bus: agentbus.Bus) -> None:
    keys, stream = Keys(bus.project), Keys(bus.project).queue("mail")
    ask(bus, "XADD", stream, "*", "payload", "1", "meta", '{"expires":9}', "id", "1x-1@mail")
    bus.queue("mail").publish(2)
    bus.queue("mail").publish(3, ordering_key="k")
    for entry in ("%-9", f"{2**65}-1", "9-", ""):
        ask(bus, "ZADD", keys.retries("mail", "default", "normal"), 1, entry)
        ask(bus, "ZADD", keys.order("mail", "normal"), 0, f"k\n{entry}")
    (first, *_) = ask(bus, "XRANGE", stream, "-", "+")
    ask(bus, "HSET", keys.attempts("mail", "default", "normal"), first[0], "x")

    assert sorted(map(str, done(bus))) == ["1", "2", "3"]
