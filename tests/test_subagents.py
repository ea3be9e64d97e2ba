"""Subagents: one name for a session, and two of its subagents never hold overlapping leases."""

from __future__ import annotations

import pathlib

import pytest

import agentbus
from agentbus import LeaseHeld, NotHolder
from agentbus.core import client_session
from tests import inprocess
from tests.hooks import Session
from tests.repositories import make_repository
from tests.servers import Shell


@pytest.fixture(autouse=True)
def repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A repository in which each test runs."""
    root = tmp_path / "shop"
    make_repository(root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def sub(connect):
    """Return a function that returns a bus of a subagent of the agent `ada`."""

    def opened(name: str) -> agentbus.Bus:
        bus = connect("ada")
        bus.scope.sub = name
        return bus

    return opened


def held(bus: agentbus.Bus) -> list[tuple[str, str | None]]:
    return [(lease.pattern, lease.sub) for lease in bus.leases()]


def test_two_subagents_of_one_agent_never_lease_overlapping_paths(bus, sub):
    first, second = sub("aaaaaa"), sub("bbbbbb")
    first.lease("src/**", why="the parser")

    with pytest.raises(LeaseHeld, match=r"leased by ada \(subagent aaaaaa\) until") as refused:
        second.lease("src/a.py")

    assert (refused.value.agent, refused.value.sub) == ("ada", "aaaaaa")
    # The sibling reads the same inbox: it cannot be asked.
    assert "tell" not in (refused.value.hint or "")
    with pytest.raises(LeaseHeld):
        second.check_leases("src/a.py")
    assert held(bus) == [("src/**", "aaaaaa")]


def test_an_agent_and_its_subagent_lease_the_same_path_each_with_an_own_end(bus, sub):
    child = sub("aaaaaa")
    mine = bus.lease("a.py", ttl=600)
    its = child.lease("a.py", ttl=60)
    bus.lease("a.py", ttl=900)

    assert held(bus) == [("a.py", None), ("a.py", "aaaaaa")]
    assert mine.token != its.token
    its.drop()
    assert held(bus) == [("a.py", None)]


def test_a_path_that_an_agent_and_its_subagent_lease_is_refused_to_another_subagent(bus, sub):
    sub("aaaaaa").lease("a.py")
    bus.lease("a.py")

    with pytest.raises(LeaseHeld, match="subagent aaaaaa"):
        sub("bbbbbb").lease("a.py")


def test_another_agent_is_refused_what_a_subagent_has_leased(connect, sub):
    sub("aaaaaa").lease("a.py")

    with pytest.raises(LeaseHeld, match=r"ada \(subagent aaaaaa\)") as refused:
        connect("bob").lease("a.py")
    assert "agentbus tell ada" in (refused.value.hint or "")


def test_a_subagent_ends_its_own_leases_and_its_agent_those_of_all(bus, sub):
    first, second = sub("aaaaaa"), sub("bbbbbb")
    bus.lease("mine.py")
    first.lease("first.py", "also.py")
    second.lease("second.py")

    with pytest.raises(NotHolder, match=r"ada \(subagent bbbbbb\)"):
        first.drop_leases("second.py")
    first.drop_leases()
    assert held(bus) == [("mine.py", None), ("second.py", "bbbbbb")]
    bus.drop_leases("second.py")
    assert held(bus) == [("mine.py", None)]


def test_a_subagents_lease_is_renewed_as_its_own(bus, sub):
    lease = sub("aaaaaa").lease("a.py", ttl=60)
    lease.renew(600)

    assert held(bus) == [("a.py", "aaaaaa")]


def test_an_agent_gives_what_its_subagent_has_leased_and_keeps_no_lease_of_it(bus, connect, sub):
    bob = connect("bob")
    bob.here()
    bus.lease("a.py")
    sub("aaaaaa").lease("a.py")
    sub("bbbbbb").lease("b.py")

    with pytest.raises(NotHolder, match="subagent bbbbbb"):
        sub("aaaaaa").tell("bob", "yours", give=["b.py"])
    bus.tell("bob", "yours", give=["a.py", "b.py"])

    assert [(lease.pattern, lease.agent, lease.sub) for lease in bus.leases()] == [
        ("a.py", "bob", None),
        ("b.py", "bob", None),
    ]


def test_the_presence_of_an_agent_has_the_leases_of_its_subagents(bus, sub):
    bus.here()
    bus.lease("a.py")
    sub("aaaaaa").lease("a.py", "b.py")

    (ada,) = bus.present()

    assert (ada.leases, ada.subs) == (("a.py", "b.py"), {"aaaaaa": ("a.py", "b.py")})


def test_the_command_line_shows_which_subagent_leases_a_path(real_shell: Shell, tmp_path):
    ada = {**real_shell.environment, "AGENTBUS_AGENT": "ada", "AGENTBUS_SUB": "aaaaaa"}
    real_shell.environment = ada
    real_shell.ok("lease", "a.py")

    assert real_shell.ok("lease").startswith("a.py by ada (subagent aaaaaa) until ")
    (lease,) = real_shell.records("lease")
    assert (lease["agent"], lease["sub"]) == ("ada", "aaaaaa")
    assert "leases a.py (subagent aaaaaa)" in real_shell.ok("who")
    (who,) = real_shell.records("who")
    assert who["subs"] == {"aaaaaa": ["a.py"]}
    real_shell.environment = {**ada, "AGENTBUS_SUB": "bbbbbb"}
    done = real_shell.run("lease", "--check", "a.py")
    assert (done.returncode, "(subagent aaaaaa)" in done.stderr) == (4, True)


# -- hooks --

CHILD, OTHER = "aea73fcb53ce7fe11", "b1c2d3cb53ce7fe12"


@pytest.fixture
def session(real_url, project, tmp_path, monkeypatch) -> Session:
    found = Session(real_url, project, tmp_path)
    monkeypatch.chdir(found.root)
    return found


def test_an_edit_of_what_a_sibling_edits_is_refused_until_the_sibling_ends(session):
    assert session.edit("a.py", agent_id=CHILD) == ""
    assert session.edit("a.py") == ""

    refused = session.edit("a.py", agent_id=OTHER)

    assert f"a.py is leased by {session.agent} (subagent aea73f) until" in refused
    assert "agentbus tell" not in refused
    with session.bus() as own:
        own.scope.sub = "aea73f"
        own.lease("docs/**")
        assert session.answer("SubagentStop", agent_id=CHILD) == ""
        assert held(own) == [("a.py", None)]
    assert session.edit("a.py", agent_id=OTHER) == ""


def test_a_subagent_reads_one_line_with_the_name_and_the_leases_of_the_session(session):
    session.edit("a.py", agent_id=OTHER)

    line = session.context("SubagentStart", agent_id=CHILD, agent_type="general-purpose")

    assert "\n" not in line
    assert line.startswith(f"AgentBus: you are a subagent (aea73f) of {session.agent}.")
    assert "a.py (subagent b1c2d3) until" in line


@pytest.mark.parametrize("client", ["codex", "copilot"])
def test_a_subagents_shell_acts_for_the_session_from_the_first_hook_on(
    session, client, monkeypatch
):
    parent, child = "0199aaaa-7d0e-7c55-9b1e-0a6f2d8c41aa", "0199aaaa-7d0e-7c55-9b1e-0a6f2dffffff"
    sent = {"codex": {"session_id": parent, "agent_id": child}}.get(
        client, {"session_id": child, "agent_id": child, "parent_agent_id": parent}
    )
    session.answer("SubagentStart", client=client, **sent)
    name = client_session.name(client, parent)
    variable = {"codex": "CODEX_THREAD_ID", "copilot": "COPILOT_AGENT_SESSION_ID"}[client]
    environment = {**session.environment, variable: child}

    with inprocess.environment(environment), agentbus.connect() as shell:
        shell.lease("a.py")
        assert [(one.agent, one.sub) for one in shell.leases()] == [(name, "ffffff")]
    patch = "*** Begin Patch\n*** Update File: a.py\n*** End Patch\n"
    edit = {"tool_name": "apply_patch", "tool_input": {"input": patch}}
    assert session.answer("PreToolUse", client=client, **sent, **edit) == ""
    # The session itself is not refused, either.
    own = {"session_id": parent}
    assert session.answer("PreToolUse", client=client, **own, **edit) == ""


def test_a_bell_waits_for_the_session_whose_subagent_runs_in_copilot(session):
    parent, child = "c21a267f-5bea-49fb-92f4-181f2a71d670", "d21a267f-5bea-49fb-92f4-181f2a71d671"
    agent = client_session.name("copilot", parent)
    with session.bus("reviewer") as reviewer, session.bus(agent) as own:
        own.here()
        reviewer.tell(agent, "why?")
    its = {"session_id": child, "agent_id": child, "parent_agent_id": parent}

    assert session.answer("PostToolUse", client="copilot", tool_name="bash", **its) == ""
    said = session.answer("PostToolUse", client="copilot", tool_name="bash", session_id=parent)
    assert "1 ask" in said
