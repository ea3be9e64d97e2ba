"""Numbers that no verb can use are refused by name, and never blamed on the server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.core.errors import UsageError

Verb = Callable[[agentbus.Bus, Any], object]

NUMBERS: dict[str, Verb] = {
    "agents": lambda bus, given: bus.agents(limit=given),
    "dead letters": lambda bus, given: bus.queue("mail").dead_letters(limit=given),
    "fetch": lambda bus, given: bus.queue("mail").fetch(count=given),
    "flags": lambda bus, given: bus.flags(limit=given),
    "inbox": lambda bus, given: list(bus.inbox(limit=given)),
    "inspect": lambda bus, given: bus.queue("mail").inspect(limit=given),
    "newest": lambda bus, given: bus.queue("mail").inspect(last=given),
    "overhear": lambda bus, given: list(bus.overhear(limit=given)),
    "peek": lambda bus, given: bus.queue("mail").peek(given),
    "stats": lambda bus, given: bus.stats(limit=given),
    "streams": lambda bus, given: bus.streams(limit=given),
}
WAITS: dict[str, Verb] = {
    "fetch": lambda bus, given: bus.queue("mail").fetch(block=given),
    "halt": lambda bus, given: bus.halt(wait=given),
    "overhear": lambda bus, given: list(bus.overhear(follow=True, timeout=given)),
    "result": lambda bus, given: bus.result("1-1@mail", wait=given),
    "stop": lambda bus, given: bus.delete(agent="ada", wait=given),
    "take": lambda bus, given: bus.take("mail", wait=given),
}
TOKENS: dict[str, Verb] = {
    "announce": lambda bus, given: bus.announce("build", token=given),
    "fail": lambda bus, given: bus.fail("build", token=given),
    "release": lambda bus, given: bus.release("build", token=given),
    "satisfy": lambda bus, given: bus.satisfy("build", token=given),
}


@pytest.mark.parametrize("given", [math.nan, math.inf, -0.5, -1, 1e300, True, "3"], ids=str)
@pytest.mark.parametrize("verb", NUMBERS)
def test_a_number_of_things_that_is_none_is_refused_by_name(
    bus: agentbus.Bus, verb: str, given: object
) -> None:
    bus.queue("mail").publish("x")

    with pytest.raises(UsageError, match=r"^(the )?(limit|count|last) is "):
        NUMBERS[verb](bus, given)


@pytest.mark.parametrize("verb", sorted({*NUMBERS} - {"inbox", "overhear"}))
def test_a_number_that_is_too_large_for_the_server_is_refused(bus: agentbus.Bus, verb: str) -> None:
    with pytest.raises(UsageError):
        NUMBERS[verb](bus, 2**70)


@pytest.mark.parametrize("given", [math.nan, "3"], ids=str)
@pytest.mark.parametrize("verb", WAITS)
def test_a_wait_that_never_ends_is_refused_before_anything_is_done(
    bus: agentbus.Bus, verb: str, given: object
) -> None:
    with pytest.raises(UsageError, match=r"^(the )?(wait|block|timeout) is "):
        WAITS[verb](bus, given)
    assert bus.paused() == []


@pytest.mark.parametrize("given", [math.nan, -1, 0.5, True, False, "3", b"3", [], 2**64], ids=str)
@pytest.mark.parametrize("verb", TOKENS)
def test_a_token_that_is_none_is_refused_by_name_and_ends_no_hold(
    bus: agentbus.Bus, verb: str, given: object
) -> None:
    hold = bus.announce("build")

    with pytest.raises(UsageError, match=r"^the token is "):
        TOKENS[verb](bus, given)
    assert bus.release("build", token=hold.token).token == hold.token
