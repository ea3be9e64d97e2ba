"""Numbers that no verb can use are refused by name, and never blamed on the server."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def offenders(
    bus: agentbus.Bus, verbs: Mapping[str, Verb], values: Sequence[Any], refusal: str = ""
) -> list[str]:
    """Return each call that is not refused in these words, with what it did instead."""
    offending = []
    for name, verb in verbs.items():
        for given in values:
            try:
                outcome = f"returned {verb(bus, given)!r}"
            except UsageError as error:
                if re.match(refusal, str(error)):
                    continue
                outcome = f"refused: {error}"
            except Exception as error:  # noqa: BLE001 (it is listed)
                outcome = repr(error)
            offending.append(f"{name}({str(given)[:9]}) {outcome}")
    return offending


def test_a_number_of_things_that_is_none_is_refused_by_name(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x")
    values = [math.nan, math.inf, -0.5, -1, 1e300, True, "3"]

    assert offenders(bus, NUMBERS, values, r"(the )?(limit|count|last|latest) is ") == []


def test_a_number_that_is_too_large_for_the_server_is_refused(bus: agentbus.Bus) -> None:
    any_number = {"inbox", "list", "notes", "overhear", "present"}
    limited = {name: verb for name, verb in NUMBERS.items() if name not in any_number}

    assert offenders(bus, limited, [2**70]) == []


def test_a_wait_that_never_ends_is_refused_before_anything_is_done(bus: agentbus.Bus) -> None:
    refusal = r"(the )?(wait|block|timeout|drain timeout) is "

    assert offenders(bus, WAITS, [math.nan, "3", True], refusal) == []
    assert (bus.paused(), bus.flags(), bus.leases()) == ([], [], [])


def test_a_time_that_no_server_can_keep_is_refused(bus: agentbus.Bus) -> None:
    bus.queue("mail").publish("x")
    bus.queue("mail").fetch()

    assert offenders(bus, TIMES, [math.nan, math.inf, 10**400, True]) == []


def test_a_token_that_is_none_is_refused_by_name_and_ends_no_hold(bus: agentbus.Bus) -> None:
    hold = bus.announce("build")
    values = [math.nan, -1, 0.5, True, False, "3", b"3", [], 2**64]

    assert offenders(bus, TOKENS, values, r"the token is ") == []
    assert bus.release("build", token=hold.token).token == hold.token


def test_a_backoff_that_would_end_a_worker_at_its_first_failure_is_refused(
    bus: agentbus.Bus,
) -> None:
    subscribe: dict[str, Verb] = {
        "every task": lambda bus, given: bus.subscribe("mail", print, backoff=Backoff(*given)),
        "one task": lambda bus, given: bus.subscribe(
            "mail", print, backoff={"app:task": Backoff(*given)}
        ),
    }
    alone = [(math.nan,), (-1,), ("3",), (True,), (math.inf,), (10**400,)]
    with_longest = [(1, math.nan), (1, "3"), (1, -5)]

    assert offenders(bus, subscribe, [*alone, *with_longest], r".*of the backoff is ") == []


def test_a_backoff_without_a_longest_delay_is_one_that_a_queue_can_keep(bus: agentbus.Bus) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no")

    bus.queue("mail").publish("x")
    endless = Backoff(first=400 * 86_400, longest=math.inf)

    assert bus.subscribe("mail", fail, backoff=endless).run_once() == 1
    assert bus.queue("mail").groups()[0].retrying == 1
    assert endless.after(2000) <= 400 * 86_400
