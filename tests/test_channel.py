"""Talk: what is said is heard once, by each agent and for each topic."""

from __future__ import annotations

import agentbus


def heard(bus: agentbus.Bus, *topics: str, **options: object) -> list[str]:
    return [message.text for message in bus.overhear(topics, **options)]  # type: ignore[arg-type]


def test_what_is_said_is_heard_once(bus, connect):
    bus.speak("hi", topic="build")

    listener = connect("bob")

    assert heard(listener) == ["hi"]
    assert heard(listener) == []


def test_listening_to_one_topic_leaves_the_others_unheard(bus):
    bus.speak("compiled", topic="build")
    bus.speak("rolled out", topic="deploy")

    assert heard(bus, "build") == ["compiled"]
    assert heard(bus, "deploy") == ["rolled out"]
    assert heard(bus) == ["compiled", "rolled out"]


def test_several_topics_are_heard_in_order_each_with_its_cursor(bus):
    bus.speak("one", topic="a")
    bus.speak("two", topic="b")
    assert heard(bus, "a") == ["one"]
    bus.speak("three", topic="a")

    assert heard(bus, "a", "b") == ["two", "three"]
    assert heard(bus, "b") == []
