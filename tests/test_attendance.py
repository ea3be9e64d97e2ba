"""Who is there is listed with what they do, since when, and how far behind they are."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.admin import project
from tests.conftest import Connect
from tests.servers import ask
from tests.small_worker import Registry
from tests.test_presence import NAMES, age


def test_nobody_is_there_at_first(bus: agentbus.Bus) -> None:
    assert bus.who() == []


def test_an_agent_is_listed_once_with_all_its_workers(bus: agentbus.Bus, connect: Connect) -> None:
    bob = connect("bob")
    bob.queue("mail").publish_many([1, 2, 3])
    bob.queue("mail").fetch(count=1)
    Registry(bob, "mail", "host:1:a").beat(done=7)
    Registry(bob, "mail", "host:1:b").beat(done=2)
    Registry(bob, "post", "host:1:c").beat(done=1)

    (one,) = bus.who()

    assert (one.agent_id, one.state, one.done) == ("bob", "working", 10)
    assert {worker.worker: worker.lag for worker in one.workers} == {
        "host:1:a": 3,
        "host:1:b": 3,
        "host:1:c": None,
    }
    # What two workers of a group have before them is one and the same.
    assert one.lag == 3
    assert one.since == min(worker.started for worker in one.workers)
    assert one.age is not None


def test_an_agent_that_only_talks_is_listed_with_what_it_did_not_hear(
    bus: agentbus.Bus, connect: Connect
) -> None:
    ada, eve = connect("ada"), connect("eve")
    ada.speak("one")
    assert len(list(eve.overhear())) == 1
    ada.speak("two")
    ada.speak("three")

    found = {one.agent_id: one for one in bus.who()}

    assert (found["eve"].state, found["eve"].workers) == (None, ())
    assert (found["eve"].unheard, found["ada"].unheard) == (2, None)
    assert (found["eve"].lag, found["eve"].since) == (None, None)


def test_a_worker_that_fell_silent_makes_its_agent_dead(bus: agentbus.Bus) -> None:
    Registry(bus, "mail", "host:1:a").beat()
    Registry(bus, "mail", "host:1:b").beat()
    age(bus, "host:1:a", 60)
    assert bus.who()[0].state == "working"

    age(bus, "host:1:b", 60)

    (one,) = bus.who()
    assert (one.state, one.since) == ("dead", None)
    assert one.age is not None
    assert one.age > 50


def test_a_live_worker_says_more_of_its_agent_than_a_dead_one(bus: agentbus.Bus) -> None:
    bus.halt()
    Registry(bus, "mail", "host:1:a").beat(state="paused")
    Registry(bus, "mail", "host:1:b").beat()
    age(bus, "host:1:b", 60)

    assert bus.who()[0].state == "paused"


def test_the_flags_that_an_agent_holds_are_listed(bus: agentbus.Bus, connect: Connect) -> None:
    eve = connect("eve @ home")
    for flag in NAMES[:5]:
        eve.announce(flag)
    eve.announce("gone")
    eve.satisfy("gone")

    assert {one.agent_id: one.flags for one in bus.who()} == {
        "eve @ home": tuple(sorted(NAMES[:5]))
    }


def test_a_holder_is_listed_however_long_ago_it_was_seen(
    bus: agentbus.Bus, connect: Connect
) -> None:
    connect("eve").announce("building")
    connect("joe").speak("hi")
    ask(bus, "DEL", bus.scope.keys.agents)
    ask(bus, "ZADD", bus.scope.keys.agents, 1, "joe")

    (one,) = bus.who()
    assert (one.agent_id, one.seen, one.flags) == ("eve", None, ("building",))
    assert [found.agent_id for found in bus.who(all=True)] == ["eve", "joe"]


def test_flags_are_not_looked_for_among_too_many_keys(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.announce("building")
    monkeypatch.setattr(project, "MANY_KEYS", 1)

    assert [one.flags for one in bus.who()] == [None]


async def test_who_is_there_by_an_asynchronous_bus(abus: agentbus.AsyncBus) -> None:
    await abus.announce("building")

    assert [(one.agent_id, one.flags) for one in await abus.who()] == [("ada", ("building",))]
