"""A record of another type takes nothing else from a view, nor from those who write such records."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.core.keys import Keys
from agentbus.errors import BackendUnavailable
from tests.servers import ask


def spoil(bus: agentbus.Bus, *keys: str) -> None:
    """Write lists in the place of keys of the project."""
    for key in keys:
        ask(bus, "DEL", f"{bus.project}:{key}")
        ask(bus, "RPUSH", f"{bus.project}:{key}", "x")


def test_sound_flags_are_listed_beside_foreign_ones(bus: agentbus.Bus) -> None:
    for flag in ("held", "done"):
        bus.announce(flag)
    bus.satisfy("done")
    spoil(bus, "flag:a", "done:b", "failed:c", "fence:held")

    assert [(one.flag, one.state) for one in bus.flags()] == [("done", "satisfied"), ("held", "held")]
    assert "foreign_key" not in {one.check for one in bus.health().findings}


def test_flags_are_listed_while_the_channel_is_foreign(bus: agentbus.Bus) -> None:
    bus.announce("held")
    spoil(bus, "ch:main")

    assert [one.flag for one in bus.flags()] == ["held"]


def test_a_foreign_key_of_an_awaited_flag_is_named(bus: agentbus.Bus) -> None:
    spoil(bus, "done:x")

    with pytest.raises(BackendUnavailable, match="a key of the flag 'x' is not a string"):
        bus.await_("x", timeout=0)


@pytest.mark.parametrize("token", ["9223372036854775807", None])
def test_a_flag_is_taken_and_ended_over_any_value_of_its_token(bus: agentbus.Bus, token) -> None:
    if token is None:
        spoil(bus, "fence:x")
    else:
        ask(bus, "SET", Keys(bus.project).fence("x"), token)

    assert bus.announce("x").token > 10**12
    spoil(bus, "fence:x")
    assert bus.satisfy("x").state == "satisfied"


def test_sound_notes_are_listed_beside_foreign_ones(bus: agentbus.Bus) -> None:
    bus.jot("sound", "value", tags=["t"])
    spoil(bus, "jot:foreign")
    for index in ("jots", "jots_by_tag:t"):
        ask(bus, "ZADD", f"{bus.project}:{index}", 1, "foreign")

    assert [note.key for note in bus.list_()] == ["sound"]
    assert [note.key for note in bus.notes(tags=["t"])] == ["sound"]
    with pytest.raises(BackendUnavailable, match="foreign is not a hash"):
        bus.recall("foreign")
    spoil(bus, "jots", "jots_by_tag:t")
    assert [note.key for note in bus.list_()] == ["sound"]
    assert bus.notes(tags=["t"]) == []


def test_readers_go_on_over_foreign_records_of_readers(bus: agentbus.Bus) -> None:
    bus.speak("a")
    spoil(bus, "agents", "heard")

    assert [message.text for message in bus.overhear()] == ["a"]
    assert [one.agent_id for one in bus.agents()] == ["ada"]
    bus.speak("b")
    spoil(bus, "agents", "heard")
    assert [message.text for message in bus.overhear()] == ["b"]
    spoil(bus, "heard")
    assert [message.text for message in bus.overhear(reset=True)] == ["a", "b"]
    spoil(bus, "last:ada")
    with pytest.raises(agentbus.AgentBusError, match="cursor"):
        list(bus.overhear())


@pytest.mark.parametrize("record", ["agents", "topics", "metrics", "heard"])
def test_views_of_foreign_records_are_empty(bus: agentbus.Bus, record: str) -> None:
    bus.speak("a", topic="t")
    bus.queue("mail").publish(1)
    spoil(bus, record)

    assert len(bus.agents()) == (record != "agents")
    assert len(bus.topics()) == (record != "topics")
    assert bus.metrics() == [] == list(bus.samples())
    assert [one.queue for one in bus.stats()] == ["mail"]
