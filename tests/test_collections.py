"""Arguments that are no text, or no collection, are refused by name in both worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import agentbus
from agentbus.core.errors import UsageError
from tests.conftest import Connect

AnyBus = agentbus.Bus | agentbus.AsyncBus
Verb = Callable[[AnyBus, Any], Any]

COLLECTIONS: dict[str, Verb] = {
    "after": lambda bus, given: bus.queue("mail").publish("x", after=given),
    "jot": lambda bus, given: bus.jot("k", "v", tags=given),
    "list": lambda bus, given: bus.list_(tag=given),
    "notes": lambda bus, given: bus.notes(given),
    "publish_many": lambda bus, given: bus.queue("mail").publish_many(given),
    "tell_many": lambda bus, given: bus.tell_many(given, "hi"),
}
TEXTS: dict[str, Verb] = {
    "await": lambda bus, given: bus.await_(given),
    "cancel": lambda bus, given: bus.cancel(given),
    "heard_by": lambda bus, given: bus.heard_by(given),
    "letters after": lambda bus, given: bus.queue("mail").dead_letters(after=given),
    "letters match": lambda bus, given: bus.queue("mail").dead_letters(match=given),
    "on_full": lambda bus, given: bus.queue("mail").publish("x", on_full=given),
    "receipts": lambda bus, given: bus.receipts(given),
    "result": lambda bus, given: bus.result(given),
    "settle": lambda bus, given: bus.settle(given, 1),
    "task": lambda bus, given: bus.task(given),
}


async def accepted(
    bus: agentbus.Bus, abus: agentbus.AsyncBus, verbs: Mapping[str, Verb], values: Sequence[object]
) -> list[str]:
    """Return each call that is not refused, in either world, with what it did instead."""
    offending = []
    for name, verb in verbs.items():
        for given in values:
            for world in (bus, abus):
                try:
                    outcome = verb(world, given)
                    if world is abus:
                        outcome = await outcome
                except UsageError:
                    continue
                except Exception as error:  # noqa: BLE001 (it is listed)
                    outcome = error
                offending.append(f"{type(world).__name__} {name}({given!r}): {outcome!r}")
    return offending


async def test_what_is_not_a_collection_is_refused(
    bus: agentbus.Bus, abus: agentbus.AsyncBus
) -> None:
    assert await accepted(bus, abus, COLLECTIONS, [3, object(), True, 0.5]) == []
    assert bus.queues() == []


async def test_what_is_not_a_text_is_refused(bus: agentbus.Bus, abus: agentbus.AsyncBus) -> None:
    values = [3, b"1-1", ["1-1"], {"1-1": 1}, object()]

    assert await accepted(bus, abus, TEXTS, values) == []


async def test_topics_that_are_no_texts_are_refused(
    bus: agentbus.Bus, abus: agentbus.AsyncBus
) -> None:
    values: list[Any] = [3, [["build"]], [b"build"], object()]
    for given in values:
        with pytest.raises(UsageError):
            list(bus.overhear(given))
        with pytest.raises(UsageError):
            [one async for one in abus.overhear(given)]


def test_tags_that_are_no_list_change_no_note(bus: agentbus.Bus) -> None:
    bus.jot("k", "before", tags=["build"])
    values: list[Any] = [None, "build", b"build"]

    for given in values:
        with pytest.raises(UsageError, match=r"^the tags are "):
            bus.jot("k", "after", tags=given)
    assert bus.recall("k").value == "before"


def test_one_name_in_place_of_a_list_of_agents_is_not_read_by_letters(connect: Connect) -> None:
    for name in ("b", "o"):
        connect(name).speak("here")

    with pytest.raises(UsageError, match=r"^the agents are 'bob'; give a list of agents$"):
        connect("ada").tell_many("bob", "hi")
    assert list(connect("b").inbox()) == []


def test_any_collection_of_tags_is_read_once(bus: agentbus.Bus) -> None:
    bus.jot("k", "v", tags=(tag for tag in ("a", "b")))
    bus.jot("l", "v", tags={"a"})

    assert bus.recall("k").tags == ("a", "b")
    assert {note.key for note in bus.notes(iter(["a"]))} == {"k", "l"}
