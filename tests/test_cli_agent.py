"""agent, pause, resume: who works, what is paused, and orders to both, in the shell."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import agentbus
from tests.servers import Shell, ask
from tests.small_worker import PATIENCE, Registry, SmallWorker
from tests.test_presence import age


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    """A shell on the run's real server."""
    return real_shell


@pytest.fixture
def url(real_url: str) -> str:
    """The server of that shell."""
    return real_url


@pytest.fixture
def bob(real_url: str, project: str) -> Iterator[agentbus.Bus]:
    """A bus of the agent `bob`, whose queue `mail` has had a task."""
    with agentbus.connect(real_url, project=project, agent="bob") as bus:
        bus.queue("mail").publish("first")
        (delivery,) = bus.queue("mail").fetch()
        delivery.ack()
        yield bus


def test_list_and_get_show_the_workers(shell: Shell, bob: agentbus.Bus) -> None:
    Registry(bob, "mail", "host:1:a").beat(done=3)

    (listed,) = shell.records("agent", "list")

    assert (listed["worker"], listed["agent_id"], listed["queue"]) == ("host:1:a", "bob", "mail")
    assert (listed["state"], listed["alive"], listed["done"]) == ("working", True, 3)
    first, second = shell.ok("agent", "list").splitlines()
    assert first.startswith("bob, working, seen ")
    assert second.startswith(
        "    mail default working, 0 running, 3 done, 0 failed, 0 to do, since "
    )
    assert second.endswith(": host:1:a")
    for name in ("host:1:a", "bob"):
        (got,) = shell.records("agent", "get", name)
        assert got["worker"] == "host:1:a"
        assert "concurrency 4\n" in shell.ok("agent", "get", name)


def test_a_worker_that_fell_silent_is_shown_as_dead(shell: Shell, bob: agentbus.Bus) -> None:
    Registry(bob, "mail", "host:1:a").beat()
    age(bob, "host:1:a", 60)

    first, second = shell.ok("agent", "list").splitlines()
    assert first.startswith("bob, dead, seen 1m")
    assert second.startswith("    mail default dead, ")
    assert ", silent 1m" in second
    assert shell.records("agent", "list")[0]["alive"] is False


def test_list_shows_those_who_only_talk_too(shell: Shell, bob: agentbus.Bus) -> None:
    Registry(bob).beat()
    shell.ok("overhear")
    bob.speak("hi")
    shell.ok("announce", "building")

    ada, worker = shell.records("agent", "list")

    assert (worker["agent_id"], worker["lag"], worker["flags"]) == ("bob", 0, [])
    assert (ada["agent_id"], ada["flags"]) == ("ada", ["building"])
    first, *_ = shell.ok("agent", "list").splitlines()
    assert first.startswith("ada, no worker, seen ")
    assert first.endswith(" ago, holds building")


def test_list_leaves_out_those_last_seen_long_ago(shell: Shell, bob: agentbus.Bus) -> None:
    bob.speak("hi")
    ask(bob, "ZINCRBY", bob.scope.keys.agents, -7200, "bob")

    assert shell.ok("agent", "list") == ""
    assert [one["agent_id"] for one in shell.records("agent", "list", "--all")] == ["bob"]


def test_pause_and_resume_of_a_queue(shell: Shell, bob: agentbus.Bus) -> None:
    with SmallWorker(bob) as worker:
        (order,) = shell.records("pause", "mail", "--why", "the moon")
        bob.queue("mail").publish(1)
        worker.beats()

        assert (order["kind"], order["name"], order["agent_id"]) == ("queue", "mail", "ada")
        assert (order["confirmed"], order["unconfirmed"]) == ([worker.name], [])
        assert worker.ran == []
        assert "queue mail paused by ada since" in shell.ok("pause")
        assert "paused by ada: the moon" in shell.ok("agent", "list")
        assert shell.records("resume", "mail")[0]["resumed"] is True
        worker.has_run(1)
        assert shell.ok("resume", "mail") == "queue mail was not paused\n"
        assert shell.ok("pause") == ""


@pytest.mark.parametrize("whole", [True, False], ids=["agent", "worker"])
def test_pause_resume_and_delete_of_an_agent_or_a_worker(
    shell: Shell, bob: agentbus.Bus, whole: bool
) -> None:
    with SmallWorker(bob) as worker:
        name = "bob" if whole else worker.name
        (order,) = shell.records("agent", "pause", name)
        assert (order["kind"], order["name"]) == ("agent" if whole else "worker", name)
        assert order["confirmed"] == [worker.name]
        assert "bob, paused, seen " in shell.ok("agent", "list")
        assert shell.records("agent", "resume", name)[0]["resumed"] is True

        (left,) = shell.records("agent", "delete", name)

        assert worker.ended.wait(PATIENCE)
        assert (left["name"], left["gone"], left["handed_over"]) == (name, [worker.name], 0)
    assert shell.ok("agent", "list") == ""


def test_a_worker_that_does_not_do_as_it_is_told_is_exit_3(shell: Shell, bob: agentbus.Bus) -> None:
    worker = Registry(bob, worker="host:1:a")

    for words in (["pause", "mail"], ["agent", "pause", "bob"], ["agent", "delete", "bob"]):
        worker.beat()
        done = shell.run(*words, "--wait", "0.05", "--json")

        assert done.returncode == 3
        assert json.loads(done.stdout)["unconfirmed"] == ["host:1:a"]
        assert "host:1:a" in json.loads(done.stderr)["error"]
    assert len(shell.records("pause")) == 2


def test_delete_of_a_dead_worker_tells_what_was_handed_over(
    shell: Shell, bob: agentbus.Bus
) -> None:
    bob.queue("mail").publish(1)
    bob.queue("mail").fetch()
    Registry(bob, worker="host:1:a").beat()
    age(bob, "host:1:a", 60)

    assert shell.ok("agent", "delete", "host:1:a") == "worker host:1:a: 1 gone\n"
    assert shell.run("agent", "get", "host:1:a").returncode == 5


@pytest.mark.parametrize(
    "words",
    [
        *(["pause", "nope"], ["resume", "nope"], ["agent", "get", "nope"]),
        *(["agent", "pause", "nope"], ["agent", "resume", "nope"], ["agent", "delete", "nope"]),
    ],
    ids=" ".join,
)
def test_an_unknown_name_is_exit_5(shell: Shell, words: list[str]) -> None:
    assert shell.run(*words).returncode == 5


@pytest.mark.parametrize(
    "words",
    [
        *(["agent"], ["agent", "frob"], ["agent", "get"], ["agent", "list", "bob"]),
        *(["agent", "get", "bob", "--why", "x"], ["agent", "get", "bob", "--all"]),
        *(["agent", "list", "--wait", "1"], ["agent", "pause", "a\nb"], ["pause", "a\nb"]),
        ["pause", "mail", "--why", ""],
    ],
    ids=repr,
)
def test_what_they_cannot_do_is_a_usage_error(shell: Shell, words: list[str]) -> None:
    assert shell.run(*words).returncode == 2
