"""Awaiting agents: a wait ends with a turn, a session or a process, and unknown names are refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

import agentbus
from agentbus import NoSuchAgent, TimedOut, UsageError
from agentbus.coordination import presence_wait
from agentbus.core import client_session
from tests import inprocess
from tests.hooks import Session
from tests.pausing import Blocked
from tests.servers import ask


@pytest.fixture
def session(url, project, tmp_path) -> Session:
    return Session(url, project, tmp_path)


@pytest.fixture
def bob(connect) -> agentbus.Bus:
    bus: agentbus.Bus = connect("bob")
    return bus


@pytest.fixture
def client(monkeypatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that hooks take for their client."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(client_session, "client_process", lambda: process.pid)
        yield process
        process.kill()


def test_a_wait_for_an_idle_agent_ends_with_its_turn(session, bob, monkeypatch):
    # No check but the one that the hook wakes.
    monkeypatch.setattr(presence_wait, "_RECHECK", 600.0)
    session.context("SessionStart")
    session.context("UserPromptSubmit")
    waiting = Blocked(bob, "await_agents", idle=[session.agent], timeout=300)

    session.context("PostToolUse")
    session.stop()

    (met,) = waiting.finish()
    assert (met.agent, met.state) == (session.agent, "idle")


def test_an_agent_that_is_idle_or_gone_already_ends_the_wait_at_once(bus, bob):
    bus.here(state="idle")
    (idle,) = bob.await_agents(idle=["ada"], timeout=0.1)
    with pytest.raises(TimedOut, match="ada to be gone"):
        bob.await_agents(gone=["ada"], timeout=0.1)
    bus.here(state="gone")
    (gone,) = bob.await_agents(idle=["ada"], timeout=0.1)

    assert (idle.state, gone.state) == ("idle", "gone")


def test_a_wait_for_an_agent_that_is_gone_ends_with_its_session(session, bob, monkeypatch):
    monkeypatch.setattr(presence_wait, "_RECHECK", 600.0)
    session.context("SessionStart")
    waiting = Blocked(bob, "await_agents", gone=[session.agent], timeout=300)

    session.answer("SessionEnd")

    (met,) = waiting.finish()
    assert met.state == "gone"


@pytest.mark.parametrize("until", ["idle", "gone"])
def test_a_wait_notices_that_the_process_was_killed(session, client, bob, monkeypatch, until):
    monkeypatch.setattr(presence_wait, "_RECHECK", 0.05)
    session.context("SessionStart")
    session.context("UserPromptSubmit")
    waiting = Blocked(bob, "await_agents", **{until: [session.agent]}, timeout=300)

    client.kill()
    client.wait()

    (met,) = waiting.finish()
    assert met.state == "gone"


def test_any_agent_is_enough_if_asked_and_else_all_are_awaited(bus, bob, connect):
    bus.here(state="idle")
    connect("eve").here()

    (met,) = bob.await_agents(idle=["ada", "eve"], any=True, timeout=0.1)
    assert met.agent == "ada"
    with pytest.raises(TimedOut):
        bob.await_agents(idle=["ada", "eve"], timeout=0.1)
    waiting = Blocked(bob, "await_agents", idle=["ada"], gone=["eve"], timeout=300)
    connect("eve").here(state="gone")
    assert {(met.agent, met.state) for met in waiting.finish()} == {
        ("ada", "idle"),
        ("eve", "gone"),
    }


def test_a_name_that_was_never_seen_is_refused_with_names_like_it(bus, bob):
    bus.here(state="idle")

    with pytest.raises(NoSuchAgent, match=r"by the name of adaa; did you mean ada\?"):
        bob.await_agents(idle=["ada", "adaa"])


def test_an_agent_that_would_wait_for_itself_or_for_one_without_turns_is_refused(bus, bob):
    bus.speak("hello")

    with pytest.raises(UsageError, match="itself"):
        bob.await_agents(gone=["bob"])
    with pytest.raises(UsageError, match="nothing records the turns of ada"):
        bob.await_agents(idle=["ada"])
    with pytest.raises(UsageError, match="no agent"):
        bob.await_agents()


def test_a_bell_of_another_type_does_not_keep_a_wait_from_its_end(bus, bob, monkeypatch):
    monkeypatch.setattr(presence_wait, "_RECHECK", 0.05)
    bus.here()
    ask(bus, "SET", bus.scope.keys.inbox_bell("ada"), "x")

    with pytest.raises(TimedOut):
        bob.await_agents(idle=["ada"], timeout=0.1)
    bus.here(state="idle")
    (met,) = bob.await_agents(idle=["ada"], timeout=0.1)
    assert met.state == "idle"


@pytest.fixture
def run(url, project):
    def run(*words: str) -> inprocess.Done:
        return inprocess.run("--url", url, "--project", project, "--agent", "bob", *words)

    return run


def test_the_command_prints_the_state_of_each_agent(run, connect):
    connect("rev").here(state="idle")

    record = json.loads(run("await", "--idle", "rev", "--json").out)
    assert list(record) == ["agent", "state", "seen", "waited_ms"]
    assert (record["agent"], record["state"]) == ("rev", "idle")
    assert run("await", "--idle", "rev").out.startswith(b"rev idle, seen 2")
    late = run("await", "--gone", "rev", "--timeout", "0.1")
    assert (late.code, late.out) == (3, b"")
    assert b"waited 0.1 s for rev to be gone" in late.err
    unknown = run("await", "--idle", "rve")
    assert unknown.code == 5
    assert b"did you mean rev?" in unknown.err


@pytest.mark.parametrize("words", [["build"], ["--fresh"], ["--until", "free"]])
def test_the_command_refuses_flags_and_their_options_beside_agents(run, words):
    assert run("await", "--idle", "rev", *words).code == 2
