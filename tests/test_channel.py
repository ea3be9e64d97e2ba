"""Talk: what is said is heard once, by each agent and for each topic."""

from __future__ import annotations

import time

import pytest

import agentbus
from agentbus.store.steps import Batch, Command, one_step
from tests.servers import Shell


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


def test_the_channel_keeps_as_many_entries_as_the_settings_say(
    real_shell: Shell, real_url: str, project: str
) -> None:
    config = real_shell.home / "config.yaml"
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        key = bus.scope.keys.channel
        bus.runner.run(one_step(Batch([("XADD", key, "*", "of", "another")] * 700)))
        config.write_text("channel: {bound: 1000}\n")
        real_shell.ok("speak", "hi", "--config", str(config))
        kept = bus.runner.run(one_step(Command("XLEN", key)))
        config.write_text("channel: {bound: 100}\n")
        real_shell.ok("speak", "hi", "--config", str(config))
        left = bus.runner.run(one_step(Command("XLEN", key)))

    # Whole nodes of the stream are trimmed, of 100 entries.
    assert kept == 701
    assert 100 <= left <= 300


def test_the_channel_keeps_messages_for_as_long_as_the_settings_say(
    real_shell: Shell, real_url: str, project: str
) -> None:
    config = real_shell.home / "config.yaml"
    config.write_text("channel: {keep: 1h}\n")
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        now, key = int(time.time() * 1000), bus.scope.keys.channel
        for age in (7_200, 3_700, 3_500):
            message = ("agent_id", "ada", "message", str(age))
            bus.runner.run(one_step(Command("XADD", key, f"{now - age * 1000}-0", *message)))

        real_shell.ok("speak", "new", "--config", str(config))

        assert [one.text for one in bus.overhear(last=9)] == ["3500", "new"]


@pytest.mark.parametrize("keep", ["0", "10s", "x", "[]", "true"])
def test_a_retention_of_the_channel_that_is_no_time_is_refused(
    real_shell: Shell, keep: str
) -> None:
    config = real_shell.home / "config.yaml"
    config.write_text(f"channel: {{keep: {keep}}}\n")

    done = real_shell.run("speak", "hi", "--config", str(config))

    assert done.returncode == 2
    assert "such as 30d" in done.stderr


def test_a_bound_of_the_channel_that_loses_everything_is_refused(real_shell: Shell) -> None:
    config = real_shell.home / "config.yaml"
    config.write_text("channel: {bound: 1}\n")

    done = real_shell.run("speak", "hi", "--config", str(config))

    assert done.returncode == 2
    assert "a whole number from 100" in done.stderr
