"""The search of messages and notes by their words, within bounds that are said."""

from __future__ import annotations

import pytest

import agentbus
from agentbus.store.steps import Batch, one_step
from tests.servers import Shell


@pytest.fixture
def bus_of_ada(real_url: str, project: str) -> agentbus.Bus:
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        yield bus


def texts(shell: Shell, *options: str) -> list[str]:
    return [one["message"] for one in shell.records("overhear", "--text", *options)]


def test_messages_are_found_by_all_of_their_words(
    real_shell: Shell, bus_of_ada: agentbus.Bus
) -> None:
    bus_of_ada.speak("The Release notes of 1.2", topic="docs")
    bus_of_ada.speak("released: build 1.2", topic="build")
    bus_of_ada.speak("release notes of 1.3", topic="docs")

    assert texts(real_shell, "notes RELEASE") == [
        "The Release notes of 1.2",
        "release notes of 1.3",
    ]
    assert texts(real_shell, "1.2", "--topic", "build") == ["released: build 1.2"]
    assert texts(real_shell, "notes", "--max", "1") == ["release notes of 1.3"]
    assert texts(real_shell, "nothing") == []


def test_a_search_marks_nothing_as_read(real_shell: Shell, bus_of_ada: agentbus.Bus) -> None:
    bus_of_ada.speak("hi there")
    bob = {"AGENTBUS_AGENT": "bob"}

    assert len(real_shell.records("overhear", "--text", "hi", env=bob)) == 1
    assert len(real_shell.records("overhear", env=bob)) == 1


def test_a_search_says_what_it_has_not_read(real_shell: Shell, bus_of_ada: agentbus.Bus) -> None:
    bus_of_ada.speak("needle")
    key = bus_of_ada.scope.keys.channel
    entry = ("XADD", key, "*", "agent_id", "ada", "message", "hay")
    bus_of_ada.runner.run(one_step(Batch([entry] * 10_000)))

    done = real_shell.run("overhear", "--text", "needle")

    assert done.stdout == ""
    assert "only 10,000 messages were searched" in done.stderr


def test_notes_are_found_by_key_tag_and_value(real_shell: Shell, bus_of_ada: agentbus.Bus) -> None:
    bus_of_ada.jot("image", "registry/Shop:1.2", tags=["docker"])
    bus_of_ada.jot("build", "commit abc", tags=["ci"])

    def keys(*options: str) -> list[str]:
        return [one["key"] for one in real_shell.records("list", "--text", *options)]

    assert keys("shop") == ["image"]
    assert keys("DOCKER registry") == ["image"]
    assert keys("build abc") == ["build"]
    assert keys("shop", "--tag", "ci") == []


@pytest.mark.parametrize(
    "argv",
    [("overhear", "--text", "x", "--follow"), ("list", "--text", "x", "--flags")],
    ids=" ".join,
)
def test_a_search_that_makes_no_sense_is_refused(real_shell: Shell, argv: tuple[str, ...]) -> None:
    assert real_shell.run(*argv).returncode == 2
