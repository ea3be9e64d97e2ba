"""clear: a project's keys go, all of them, and not one of anybody else's."""

from __future__ import annotations

import uuid

import pytest

import agentbus
from agentbus.store.driver import run
from agentbus.store.steps import Command


@pytest.fixture
def ask(bus):
    """Return a function that sends one plain command, as any other program would."""

    link = bus.backend.link()

    def _ask(*args: object):
        def op():
            reply = yield Command(*args)
            return reply

        return run(link, op())

    yield _ask
    link.close()


def fill(bus: agentbus.Bus) -> None:
    """Leave a key of each kind."""
    bus.speak("hi", topic="build")
    list(bus.overhear())
    list(bus.overhear("build"))
    bus.jot("how", "make", tags=["a", "b"])
    bus.announce("held")
    bus.satisfy("done")


def dump(ask) -> dict[bytes, bytes]:
    found, cursor = set(), b"0"
    while True:
        cursor, page = ask("SCAN", cursor, "COUNT", 1000)
        found.update(page)
        if int(cursor) == 0:
            return {key: ask("DUMP", key) for key in found}


def neighbours(project: str) -> list[str]:
    """Return keys that lie close to a project's, and belong to others."""
    names = [f"{project}2", f"{project}:x", f"x:{project}", f"x{project}", f"{{{project}}}"]
    names += [
        "*",
        f"{project[:-1]}?",
        f"[{project[0]}]{project[1:]}",
        f"{project}*",
        project.upper(),
    ]
    kinds = ["ch:main", "last:ada", "jot:how", "jots", "flag:held", "fence:held", "heard", "q:mail"]
    keys = [f"{name}:{kind}" for name in names for kind in kinds]
    return [*keys, project, f"{project}:", f"{project}:cache:1", f"{project}:jotter", "foreign"]


def test_clear_removes_the_projects_keys_and_no_others(bus, ask, project):
    for key in neighbours(project):
        ask("SET", key, f"theirs, {key}")
    before = {key: value for key, value in dump(ask).items() if project.encode() in key.lower()}
    fill(bus)

    bus.clear()

    after = {key: value for key, value in dump(ask).items() if project.encode() in key.lower()}
    assert after == before
    assert len(before) > 50


@pytest.mark.parametrize("suffix", ["2", ":x", ":jots.x"])
def test_clear_leaves_a_neighbouring_bus_whole(suffix, url, project):
    with (
        agentbus.connect(url, project=project, agent="ada") as mine,
        agentbus.connect(url, project=f"{project}{suffix}", agent="bob") as theirs,
    ):
        fill(mine)
        fill(theirs)
        before = theirs.clear(dry_run=True)

        mine.clear()

        assert mine.clear(dry_run=True) == {}
        assert theirs.clear(dry_run=True) == before
        assert theirs.recall("how").value == "make"


def test_clear_of_the_longer_project_leaves_the_shorter_one(url, project):
    with (
        agentbus.connect(url, project=project, agent="ada") as shorter,
        agentbus.connect(url, project=f"{project}:x", agent="bob") as longer,
    ):
        fill(shorter)
        fill(longer)
        before = shorter.clear(dry_run=True)

        longer.clear()

        assert shorter.clear(dry_run=True) == before


def test_the_counts_say_how_many_of_each_kind(bus):
    fill(bus)

    counts = bus.clear(dry_run=True)

    one_each = ("ch", "done", "flag", "heard", "jot", "jots", "topics")
    assert counts.pop("once") > 0
    assert counts == {
        **dict.fromkeys(one_each, 1),
        "agents": 2,
        "fence": 2,
        "jots_by_tag": 2,
        "last": 2,
    }
    assert set(bus.clear()) == {*counts, "once"}
    assert bus.clear() == {}


def test_a_dry_run_changes_nothing(bus, ask, project):
    fill(bus)
    before = {key: value for key, value in dump(ask).items() if project.encode() in key}

    bus.clear(dry_run=True)

    assert {key: value for key, value in dump(ask).items() if project.encode() in key} == before


def test_clear_takes_more_keys_than_fit_into_one_command(bus, ask, project):
    for number in range(1203):
        ask("SET", f"{project}:jot:{number}", "x")

    assert bus.clear() == {"jot": 1203}
    assert bus.clear(dry_run=True) == {}


def test_a_cleared_project_can_be_used_at_once(bus):
    fill(bus)
    bus.clear()

    bus.speak("again")

    assert [message.text for message in bus.overhear()] == ["again"]
    assert bus.list_() == []


def test_clear_takes_a_key_that_is_no_text(bus, ask, project):
    # Another program that follows the same patterns may write titles in any encoding.
    ask("SET", f"{project}:jot:".encode() + b"caf\xe9", "x")

    assert bus.clear() == {"jot": 1}
    assert ask("EXISTS", f"{project}:jot:".encode() + b"caf\xe9") == 0


def test_without_force_the_shell_only_counts(real_shell):
    real_shell.ok("announce", "held")

    done = real_shell.run("clear")

    assert done.returncode == 2
    assert "flag 1\n" in done.stdout
    assert "--force" in done.stderr
    assert real_shell.records("list", "--flags")[0]["flag"] == "held"


def test_a_dry_run_in_the_shell_exits_0(real_shell, project):
    real_shell.ok("announce", "held")

    (counted,) = real_shell.records("clear", "--dry-run")

    assert counted["project"] == project
    assert counted["keys"]["flag"] == 1
    assert counted["total"] == sum(counted["keys"].values())
    assert real_shell.records("list", "--flags")


def test_with_force_the_shell_removes(real_shell):
    real_shell.ok("announce", "held")

    out = real_shell.ok("clear", "--force")

    assert "flag 1\n" in out
    assert real_shell.ok("list", "--flags") == ""
    assert real_shell.ok("clear", "--dry-run") == "total 0\n"


def test_force_and_dry_run_together_change_nothing(real_shell):
    real_shell.ok("announce", "held")

    real_shell.ok("clear", "--force", "--dry-run")

    assert real_shell.records("list", "--flags")


def test_neighbours_survive_the_shells_clear(real_shell, valkey):
    name = f"app{uuid.uuid4().hex[:8]}"
    theirs = neighbours(name)
    for key in theirs:
        valkey.ask("SET", key, "theirs")
    real_shell.ok("jot", "how", "make", "--tag", "a", "--project", name)

    real_shell.ok("clear", "--force", "--project", name)

    assert [key for key in theirs if valkey.ask("GET", key) != b"theirs"] == []
    assert valkey.ask("EXISTS", f"{name}:jot:how") == 0
