"""Views of a project with very many queues or flags answer soon, and report what they left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import agentbus
from agentbus.admin.health import queues as health_of_queues
from agentbus.commands import bus as bus_verb, list_ as list_verb
from agentbus.store.steps import Batch, Command, Script
from tests import inprocess
from tests.conftest import Connect
from tests.servers import ask

# Verbs leave connections as they do where a process ends.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def in_shell(connect: Connect, real_url: str, project: str) -> Iterator[agentbus.Bus]:
    """A bus with four queues, on the real server that command lines in this process use, too."""
    given = {"AGENTBUS_URL": real_url, "AGENTBUS_PROJECT": project, "AGENTBUS_AGENT": "ada"}
    with inprocess.environment(given):
        bus = connect(url=real_url)
        for name in "abcd":
            bus.queue(name).publish(name)
        yield bus


def test_no_request_examines_much_while_others_wait(bus: agentbus.Bus, monkeypatch) -> None:
    for at in range(12):
        bus.queue(f"q{at}").publish(at)
    for at in range(110):
        ask(bus, "SET", f"{bus.project}:flag:f{at}", "ada @ 2025-11-20T07:00:00Z")
        ask(bus, "HSET", f"{bus.project}:jot:note-{at}", "value", "x")
    steps: list[Any] = []
    send = bus.runner.link.execute

    def noted(step: Any) -> Any:
        steps.append(step)
        return send(step)

    monkeypatch.setattr(bus.runner.link, "execute", noted)
    bus.flags()
    bus.list_(latest=200)
    bus.stats()
    bus.health()
    bus.tidy()
    bus.clear()

    commands = [step.args for step in steps if isinstance(step, Command)]
    commands += [args for step in steps if isinstance(step, Batch) for args in step.commands]
    for args in commands:
        if args[0] in ("SCAN", "ZSCAN"):
            assert args[args.index("COUNT") + 1] <= 1000
        elif args[0] in ("UNLINK", "DEL"):
            assert len(args) <= 101
        elif args[0] in ("ZRANGE", "ZREVRANGE") and not args[1].endswith((":beat", ":sessions")):
            assert 0 <= args[3] < 10_000
    scripts = [step for step in steps if isinstance(step, Script)]
    assert max(len(step.keys) for step in scripts if step.script == "read_flags") <= 401
    assert max(len(step.keys) for step in scripts if step.script == "survey_streams") <= 120
    assert max(len(step.keys) for step in scripts if step.script == "recall") <= 100


def test_statistics_streams_and_flags_are_limited(bus: agentbus.Bus) -> None:
    for name in ("a", "b", "c"):
        bus.queue(name).publish(name)
        bus.announce(name)

    assert [one.queue for one in bus.stats(limit=2)] == ["a", "b"]
    assert [one.kind for one in bus.streams(limit=2)] == ["channel", "queue"]
    assert [one.flag for one in bus.flags(limit=2)] == ["a", "b"]
    assert len(bus.stats()) == len(bus.flags()) == 3


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_bus_stats_reports_the_queues_that_it_left_out(in_shell, monkeypatch) -> None:
    monkeypatch.setattr(bus_verb, "_MOST", 2)

    done = inprocess.run("bus", "stats")

    assert [line.split()[0] for line in done.out.splitlines()[2:]] == [b"a", b"b"]
    assert b"only 2 queues are shown; those from c on are left out" in done.err


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_bus_list_reports_the_streams_that_it_left_out(in_shell, monkeypatch) -> None:
    monkeypatch.setattr(bus_verb, "_MOST", 2)

    done = inprocess.run("bus", "list")

    assert b"only the first 2 streams were looked at; those from" in done.err


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_list_flags_reports_the_flags_that_it_left_out(in_shell, monkeypatch) -> None:
    monkeypatch.setattr(list_verb, "_MOST", 2)
    for name in "abcd":
        in_shell.announce(name)

    done = inprocess.run("list", "--flags")

    assert [line.split()[0] for line in done.out.splitlines()] == [b"a", b"b"]
    assert b"only 2 flags are shown; those from c on are left out" in done.err


@pytest.mark.parametrize("url", ["valkey"], indirect=True)
def test_health_reports_the_queues_that_it_left_out(in_shell, monkeypatch) -> None:
    monkeypatch.setattr(health_of_queues, "_MOST", 3)

    health = in_shell.health()

    (found,) = [one for one in health.findings if one.check == "left_out"]
    assert (health.queues, found.figure, found.severity) == (3, 1, "warning")
    assert found.text == "only the first 3 queues were examined; 1 queue from d on: left out"
