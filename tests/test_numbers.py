"""Numbers that no verb can use are refused by name, and never blamed on the server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.core.errors import UsageError
from agentbus.retry import Backoff

Verb = Callable[[agentbus.Bus, Any], object]

NUMBERS: dict[str, Verb] = {
    "agents": lambda bus, given: bus.agents(limit=given),
    "dead letters": lambda bus, given: bus.queue("mail").dead_letters(limit=given),
    "fetch": lambda bus, given: bus.queue("mail").fetch(count=given),
    "flags": lambda bus, given: bus.flags(limit=given),
    "inbox": lambda bus, given: list(bus.inbox(limit=given)),
    "inspect": lambda bus, given: bus.queue("mail").inspect(limit=given),
    "list": lambda bus, given: bus.list_(latest=given),
    "newest": lambda bus, given: bus.queue("mail").inspect(last=given),
    "notes": lambda bus, given: bus.notes(latest=given),
    "overhear": lambda bus, given: list(bus.overhear(limit=given)),
    "present": lambda bus, given: bus.present(limit=given),
    "replay": lambda bus, given: bus.queue("mail").replay_from("1h", limit=given),
    "peek": lambda bus, given: bus.queue("mail").peek(given),
    "stats": lambda bus, given: bus.stats(limit=given),
    "streams": lambda bus, given: bus.streams(limit=given),
}
WAITS: dict[str, Verb] = {
    "acquire": lambda bus, given: bus.semaphore("build", 1).acquire(wait=given),
    "announce": lambda bus, given: bus.announce("build", wait=given),
    "ask": lambda bus, given: bus.ask("mail", "x", timeout=given),
    "await": lambda bus, given: bus.await_("build", timeout=given),
    "drain": lambda bus, given: bus.subscribe("mail", print, drain=True, drain_timeout=given),
    "fetch": lambda bus, given: bus.queue("mail").fetch(block=given),
    "halt": lambda bus, given: bus.halt(wait=given),
    "held": lambda bus, given: bus.semaphore("build", 1).held(wait=given).__enter__(),
    "hold": lambda bus, given: bus.hold("build", wait=given).__enter__(),
    "inbox": lambda bus, given: list(bus.inbox(wait=given)),
    "lease": lambda bus, given: bus.lease("src", wait=given),
    "overhear": lambda bus, given: list(bus.overhear(follow=True, timeout=given)),
    "receipts": lambda bus, given: bus.receipts("1-1@ada", wait=given),
    "result": lambda bus, given: bus.result("1-1@mail", wait=given),
    "stop": lambda bus, given: bus.delete(agent="ada", wait=given),
    "take": lambda bus, given: bus.take("mail", wait=given),
    "tell": lambda bus, given: bus.tell("ada", "done?", wait=given),
}
TIMES: dict[str, Verb] = {
    "announce": lambda bus, given: bus.announce("build", ttl=given),
    "at": lambda bus, given: bus.queue("mail").publish("x", at=given),
    "delay": lambda bus, given: bus.queue("mail").publish("x", delay=given),
    "fetch": lambda bus, given: bus.queue("mail").fetch(visibility=given),
    "hold": lambda bus, given: bus.hold("build", ttl=given).__enter__(),
    "lease": lambda bus, given: bus.lease("src", ttl=given),
    "renew": lambda bus, given: bus.announce("other").renew(given),
    "replay": lambda bus, given: bus.queue("mail").replay_from(given),
    "replay until": lambda bus, given: bus.queue("mail").replay_from("1h", until=given),
    "semaphore": lambda bus, given: bus.semaphore("build", 1, ttl=given),
    "subscribe": lambda bus, given: bus.subscribe("mail", print, visibility=given),
    "take": lambda bus, given: bus.take("mail", visibility=given),
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

    with pytest.raises(UsageError, match=r"^(the )?(limit|count|last|latest) is "):
        NUMBERS[verb](bus, given)


@pytest.mark.parametrize(
    "verb", sorted({*NUMBERS} - {"inbox", "list", "notes", "overhear", "present"})
)
def test_a_number_that_is_too_large_for_the_server_is_refused(bus: agentbus.Bus, verb: str) -> None:
    with pytest.raises(UsageError):
        NUMBERS[verb](bus, 2**70)


@pytest.mark.parametrize("given", [math.nan, "3", True], ids=str)
@pytest.mark.parametrize("verb", WAITS)
def test_a_wait_that_never_ends_is_refused_before_anything_is_done(
    bus: agentbus.Bus, verb: str, given: object
) -> None:
    with pytest.raises(UsageError, match=r"^(the )?(wait|block|timeout|drain timeout) is "):
        WAITS[verb](bus, given)
    assert (bus.paused(), bus.flags(), bus.leases()) == ([], [], [])


@pytest.mark.parametrize("given", [math.nan, math.inf, 10**400, True], ids=lambda one: str(one)[:9])
@pytest.mark.parametrize("verb", TIMES)
def test_a_time_that_no_server_can_keep_is_refused(
    bus: agentbus.Bus, verb: str, given: object
) -> None:
    bus.queue("mail").publish("x")
    bus.queue("mail").fetch()

    with pytest.raises(UsageError):
        TIMES[verb](bus, given)


@pytest.mark.parametrize("given", [math.nan, -1, 0.5, True, False, "3", b"3", [], 2**64], ids=str)
@pytest.mark.parametrize("verb", TOKENS)
def test_a_token_that_is_none_is_refused_by_name_and_ends_no_hold(
    bus: agentbus.Bus, verb: str, given: object
) -> None:
    hold = bus.announce("build")

    with pytest.raises(UsageError, match=r"^the token is "):
        TOKENS[verb](bus, given)
    assert bus.release("build", token=hold.token).token == hold.token


@pytest.mark.parametrize(
    "given",
    [
        (math.nan,),
        (-1,),
        ("3",),
        (True,),
        (math.inf,),
        (10**400,),
        (1, math.nan),
        (1, "3"),
        (1, -5),
    ],
    ids=lambda one: str(one)[:9],
)
def test_a_backoff_that_would_end_a_worker_at_its_first_failure_is_refused(
    bus: agentbus.Bus, given: Any
) -> None:
    for backoff in (Backoff(*given), {"app:task": Backoff(*given)}):
        with pytest.raises(UsageError, match=r"of the backoff is "):
            bus.subscribe("mail", print, backoff=backoff)


def test_a_backoff_without_a_longest_delay_is_one_that_a_queue_can_keep(bus: agentbus.Bus) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no")

    bus.queue("mail").publish("x")
    endless = Backoff(first=400 * 86_400, longest=math.inf)

    assert bus.subscribe("mail", fail, backoff=endless).run_once() == 1
    assert bus.queue("mail").groups()[0].retrying == 1
    assert endless.after(2000) <= 400 * 86_400
