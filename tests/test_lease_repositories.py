"""Leases of several repositories in one project: each repository has its own paths."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable

import pytest

import agentbus
from agentbus import LeaseHeld, NotFound
from agentbus.coordination.lease_step import own_repository
from tests import inprocess
from tests.hooks import Session
from tests.repositories import make_repository
from tests.servers import ask


@pytest.fixture(autouse=True)
def shop(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The repository in which each test begins."""
    return _repository(tmp_path, "shop", monkeypatch)


@pytest.fixture
def enter(tmp_path, monkeypatch) -> Callable[[str], pathlib.Path]:
    """Return a function that makes a repository of this name, and changes to it."""
    return lambda name: _repository(tmp_path, name, monkeypatch)


def _repository(place: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    root = place / name
    if not root.exists():
        make_repository(root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def bob(connect):
    return connect("bob")


def paths(bus: agentbus.Bus) -> list[tuple[str, str]]:
    return [(lease.path, lease.agent) for lease in bus.leases()]


def test_the_same_path_in_two_repositories_is_leased_by_two_agents(bus, bob, enter):
    name = own_repository(bus.scope)
    bus.lease("src/**")
    bus.lease("*/x.py")
    enter("api")

    bob.lease("src/app.py")
    bob.lease("**")
    assert bob.holder_of("docs/a.md").agent == "bob"
    assert paths(bob) == [
        ("**", "bob"),
        (f"/{name}/*/x.py", "ada"),
        (f"/{name}/src/**", "ada"),
        ("src/app.py", "bob"),
    ]
    enter("shop")
    with pytest.raises(LeaseHeld, match=r"leased by ada until .*\(src/\*\*\)"):
        bob.lease("src/app.py")


def test_an_agent_leases_one_path_in_two_repositories_and_ends_each(bus, enter):
    first = bus.lease("a.py")
    enter("api")
    second = bus.lease("a.py")
    again = bus.lease("a.py", why="more")

    assert first.token != second.token == again.token
    assert [lease.pattern for lease in bus.drop_leases("a.py")] == ["a.py"]
    with pytest.raises(NotFound):
        bus.drop_leases("a.py")
    enter("shop")
    assert [(lease.path, lease.token) for lease in bus.leases()] == [("a.py", first.token)]
    assert bus.lease("a.py").token == first.token


def test_clones_of_one_origin_share_leases(bus, bob, enter):
    origin = '[remote "origin"]\n\turl = {}\n'
    (enter("one") / ".git/config").write_text(origin.format("git@example.org:shop.git"))
    bus.lease("src/**")
    (enter("two") / ".git/config").write_text(origin.format("https://example.org/shop"))

    with pytest.raises(LeaseHeld):
        bob.lease("src/a.py")


def test_a_repository_with_a_project_of_its_own_config_is_still_itself(bus, bob, enter):
    config = '[agentbus]\n\tproject = both\n[remote "origin"]\n\turl = https://example.org/{}\n'
    (enter("one") / ".git/config").write_text(config.format("one"))
    bus.lease("a.py")
    (enter("two") / ".git/config").write_text(config.format("two"))

    bob.lease("a.py")


def test_all_directories_share_leases_where_the_settings_say_so(bus, bob, enter):
    bus.scope.leases_by_project = bob.scope.leases_by_project = True
    bus.lease("src/**")
    enter("api")

    with pytest.raises(LeaseHeld):
        bob.lease("src/app.py")


def test_a_lease_without_a_repository_is_one_of_all(bus, bob, tmp_path, monkeypatch, enter):
    monkeypatch.chdir(tmp_path)
    bus.lease("src/**")

    for name in ("shop", "api"):
        enter(name)
        with pytest.raises(LeaseHeld):
            bob.lease("src/app.py")
    bus.lease("src/**")
    assert [lease.repository for lease in bus.leases()] == [None]
    assert (
        f'"repository":"{own_repository(bus.scope)}"'.encode()
        in ask(bus, "HVALS", bus.scope.keys.leases)[0]
    )


def test_a_block_renews_and_ends_its_lease_from_another_repository(bus, bob, enter):
    with bus.lease("a.py", ttl=60) as held:
        enter("api")
        bob.lease("a.py")
        held.renew(600)
        assert [lease.agent for lease in bus.leases()] == ["ada", "bob"]
    assert paths(bus) == [("a.py", "bob")]


def test_a_lease_that_is_given_stays_one_of_its_repository(bus, bob, enter):
    name = own_repository(bus.scope)
    bus.lease("a.py")
    list(bob.inbox())
    enter("api")
    bob.lease("a.py")
    enter("shop")
    bus.tell("bob", "yours", give=["a.py"])

    assert [message.gives for message in bob.inbox()] == [("a.py",)]
    enter("api")
    assert paths(bus) == [(f"/{name}/a.py", "bob"), ("a.py", "bob")]
    bob.drop_leases("a.py")
    assert paths(bus) == [(f"/{name}/a.py", "bob")]


def test_force_takes_nothing_of_another_repository(bus, bob, enter):
    bus.lease("a.py")
    enter("api")

    assert bob.lease("a.py", force=True).displaced == ()
    assert len(bus.leases()) == 2


def test_the_verbs_name_the_repository_of_another_ones_leases(real_url, project, enter, tmp_path):
    environment = {
        "AGENTBUS_URL": real_url,
        "AGENTBUS_PROJECT": project,
        "AGENTBUS_AGENT": "ada",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }

    def run(*argv: str) -> str:
        with inprocess.environment(environment):
            done = inprocess.run(*argv)
        assert done.code == 0, done.err
        return done.out.decode()

    here = run("lease", "src/**")
    listed, known = run("lease"), json.loads(run("lease", "--json"))
    enter("api")
    other, record = run("lease"), json.loads(run("lease", "--json"))
    (presence,) = (json.loads(line) for line in run("who", "--json").splitlines())
    page = run("prime")
    dropped = run("lease", "--drop")

    assert (here[:7], listed[:10], "repository" in known) == ("src/** ", "src/** by ", False)
    name = record["repository"]
    assert record["pattern"] == "src/**"
    assert name.startswith("shop-")
    assert other.startswith(f"/{name}/src/** by ada until ")
    assert presence["leases"] == [f"/{name}/src/**"]
    assert f"yours: /{name}/src/** until" in page
    assert dropped == f"/{name}/src/** dropped\n"


def test_hooks_of_two_repositories_refuse_each_other_nothing(url, project, tmp_path):
    sessions = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sessions.append(Session(url, project, tmp_path / name, session=f"session-{name}"))
        assert sessions[-1].edit("src/app.py") == ""
    third = Session(url, project, tmp_path / "one", session="session-three")

    assert "src/app.py is leased by" in third.edit("src/app.py")
    with sessions[0].bus() as bus:
        os.chdir(sessions[0].root)
        assert [lease.repository is None for lease in bus.leases()] == [False, True]
        # A session that has moved to another repository keeps what it has changed in the first.
        os.chdir(tmp_path)
        sessions[0].root = sessions[1].root
        sessions[0].stop()
        assert len(bus.leases()) == 2
