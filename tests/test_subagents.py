"""Subagents: one name for a session, and two of its subagents never hold overlapping leases."""

from __future__ import annotations

import pathlib

import pytest

import agentbus
from agentbus import LeaseHeld, NotHolder
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
