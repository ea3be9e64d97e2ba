"""Queues of the bus itself, such as `~webhooks`, whose tasks are signed: no publisher writes into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import ConfigError, InvalidName
from agentbus.queues.ids import PRIORITIES
from agentbus.routing import parse
from tests.servers import Shell, ask as plainly

OWN = "~webhooks"
FORGED = {"url": "https://example.org/", "body": "forged"}


def nothing_came(bus: agentbus.Bus) -> bool:
    keys = Keys(bus.project)
    found = [keys.queue(OWN, priority) for priority in PRIORITIES]
    found += [keys.delayed(OWN), keys.after(OWN), keys.after_bodies(OWN)]
    return all(plainly(bus, "EXISTS", key) == 0 for key in found)


PUBLISHERS: dict[str, Callable[[agentbus.Bus], Any]] = {
    "publish": lambda bus: bus.queue(OWN).publish(FORGED),
    "a priority": lambda bus: bus.queue(OWN).publish(FORGED, priority="high"),
    "a delay": lambda bus: bus.queue(OWN).publish(FORGED, delay=0),
    "a time": lambda bus: bus.queue(OWN).publish(FORGED, at=1.0),
    "after": lambda bus: bus.queue(OWN).publish(FORGED, after=bus.queue("a").publish(1)),
    "publish_many": lambda bus: bus.queue(OWN).publish_many([FORGED]),
    "publish_many with keys": lambda bus: bus.queue(OWN).publish_many([FORGED], key="k"),
    "publish_many of nothing": lambda bus: bus.queue(OWN).publish_many([]),
    "publish_stream": lambda bus: list(bus.queue(OWN).publish_stream([FORGED])),
    "ask": lambda bus: bus.ask(OWN, FORGED, timeout=0.01),
    "another own queue": lambda bus: bus.queue("~other").publish(1),
}


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_what_publishes_refuses_a_queue_of_the_bus_itself(
    bus: agentbus.Bus, publisher: str
) -> None:
    with pytest.raises(InvalidName, match="belongs to the bus itself"):
        PUBLISHERS[publisher](bus)

    assert nothing_came(bus)


async def test_async_publishers_refuse_it_too(abus: agentbus.AsyncBus) -> None:
    queue = abus.queue(OWN)

    with pytest.raises(InvalidName):
        await queue.publish(FORGED)
    with pytest.raises(InvalidName):
        await queue.publish_many([FORGED])
    with pytest.raises(InvalidName):
        _ = [one async for one in queue.publish_stream([FORGED])]
    with pytest.raises(InvalidName):
        await abus.queue("a").publish(1, reply_to=OWN)


@pytest.mark.parametrize("reply_to", [OWN, "~other", "~"])
def test_a_task_that_asks_for_a_reply_there_is_refused(bus: agentbus.Bus, reply_to: str) -> None:
    with pytest.raises(InvalidName, match="belongs to the bus itself"):
        bus.queue("sums").publish(1, reply_to=reply_to)

    assert bus.queue("sums").peek() == []


def test_a_written_task_that_asks_for_a_reply_there_is_done_without_one(bus: agentbus.Bus) -> None:
    keys = Keys(bus.project)
    meta = orjson.dumps({"reply_to": OWN})
    plainly(bus, "XADD", keys.queue("sums"), "*", "payload", "1", "meta", meta)

    assert bus.subscribe("sums", lambda _: FORGED, drain=True).run() == 1

    assert nothing_came(bus)
    assert plainly(bus, "HGET", keys.stats("sums"), "unanswered") == b"1"


def buried(bus: agentbus.Bus) -> str:
    """Return the id of a dead letter whose task is a forged webhook."""

    def refuse(_: agentbus.Delivery) -> None:
        raise agentbus.Bury("no")

    bus.queue("sums").publish(FORGED)
    bus.subscribe("sums", refuse, drain=True).run()
    (letter,) = bus.queue("sums").dead_letters()
    return letter.id


def test_a_dead_letter_is_not_replayed_there(bus: agentbus.Bus) -> None:
    letter = buried(bus)

    with pytest.raises(InvalidName, match="belongs to the bus itself"):
        bus.queue("sums").replay(letter, to=OWN)
    with pytest.raises(InvalidName):
        bus.queue("sums").replay_all(to=OWN)

    assert nothing_came(bus)


def test_a_dead_letter_that_says_that_it_came_from_there_is_not_replayed_there(
    bus: agentbus.Bus,
) -> None:
    own = {"queue": OWN, "group": "default", "priority": "normal"}
    words = ("payload", orjson.dumps(FORGED), *(word for pair in own.items() for word in pair))
    plainly(bus, "XADD", Keys(bus.project).dead_letters("sums", "default"), "*", *words)
    (letter,) = bus.queue("sums").dead_letters()

    with pytest.raises(InvalidName):
        bus.queue("sums").replay(letter.id)
    with pytest.raises(InvalidName):
        bus.queue("sums").replay_all()

    assert nothing_came(bus)


def test_a_dead_letter_of_another_queue_that_lies_among_its_own_is_not_replayed_there(
    bus: agentbus.Bus,
) -> None:
    # As a policy with `dead_letters` puts it there.
    words = ("payload", orjson.dumps(FORGED), "queue", "sums", "priority", "normal")
    plainly(bus, "XADD", Keys(bus.project).dead_letters(OWN, "default"), "*", *words)
    (letter,) = bus.queue(OWN).dead_letters()

    with pytest.raises(InvalidName):
        bus.queue(OWN).replay(letter.id, to=OWN)

    assert bus.queue(OWN).replay(letter.id).endswith("@sums")
    assert nothing_came(bus)


@pytest.mark.parametrize(
    "argv",
    [
        ("publish", OWN, '{"url": "https://example.org/", "body": 1}'),
        ("publish", OWN, "--lines"),
        ("publish", OWN, "1", "--delay", "1"),
        ("publish", "sums", "1", "--reply-to", OWN),
        ("ask", OWN, "1", "--timeout", "1"),
        ("dlq", "replay", "sums", "--to", OWN),
    ],
    ids=" ".join,
)
def test_verbs_refuse_it_with_a_hint(shell: Shell, argv: tuple[str, ...]) -> None:
    done = shell.run(*argv, stdin="1\n")

    assert (done.returncode, done.stdout) == (2, "")
    assert "belongs to the bus itself" in done.stderr
    assert "hint: " in done.stderr


def test_a_router_neither_reads_from_nor_sends_to_one() -> None:
    with pytest.raises(ConfigError, match="belongs to the bus itself"):
        parse("incoming: '~webhooks'\nagents: [ada]\n")

    rules = parse("team: '~webhooks'\nagents: ['~webhooks']\n")

    assert [one.queue for one in rules.agents.values()] == ["team.~webhooks.~webhooks"]
