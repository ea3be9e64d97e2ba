"""Presence: who is there, where, and what each agent does."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import agentbus
from agentbus.coordination import presence
from agentbus.coordination.presence import KEPT, RECENT
from agentbus.core import repository
from tests.servers import Shell, ask

PLACE = {"client": "claude", "session": "s-1", "host": "far", "pid": "1", "branch": "main"}


def test_who_is_there_is_listed_with_what_it_does(connect):
    ada, bob = connect("ada"), connect("bob")
    ada.here(doing="the parser", state="waiting")
    bob.runner.run(presence.here(bob.scope, place=PLACE))

    first, second = ada.present()

    assert (first.agent, first.state, first.client, first.session) == (
        *("bob", "active", "claude", "s-1"),
    )
    assert (first.host, first.pid, first.branch, first.doing) == ("far", 1, "main", None)
    assert (second.agent, second.state, second.doing) == ("ada", "waiting", "the parser")
    assert (second.host, second.cwd) == (os.uname().nodename, os.getcwd())
    assert (second.leases, second.unread) == ((), 0)


def test_a_state_keeps_its_beginning_until_another_one_begins(bus):
    bus.here(state="idle")
    (first,) = bus.present()
    bus.here(doing="reading")
    (again,) = bus.present()
    bus.here(state="active")
    (last,) = bus.present()

    assert (again.state, again.since) == ("idle", first.since)
    assert (last.state, last.doing) == ("active", "reading")
    assert last.since >= again.seen >= first.seen


def test_what_an_agent_does_is_removed_by_an_empty_text(bus):
    bus.here(doing="x")
    bus.here(doing="")

    assert [one.doing for one in bus.present()] == [None]


def test_an_agent_that_ended_is_only_among_all(connect):
    ada, bob = connect("ada"), connect("bob")
    bob.here(state="gone")
    ada.here()

    assert [one.agent for one in ada.present()] == ["ada"]
    # Both may have been seen in the same millisecond.
    assert {one.agent: one.state for one in ada.present(all=True)} == {
        "ada": "active",
        "bob": "gone",
    }


def test_an_agent_whose_process_ended_is_gone(bus):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    here = {"host": os.uname().nodename}
    bus.runner.run(presence.here(bus.scope, place={**here, "pid": str(ended.pid)}))
    assert bus.present() == []

    bus.runner.run(presence.here(bus.scope, place={**here, "pid": str(os.getpid())}))
    assert [one.state for one in bus.present()] == ["active"]


def test_an_agent_without_a_record_is_there_for_an_hour_after_it_spoke(connect):
    ada, keys = connect("ada"), connect().scope.keys
    now = ada.scope.now()
    for agent, age in (("new", RECENT - 60), ("old", RECENT + 60)):
        ask(ada, "ZADD", keys.agents, str(now - age), agent)

    assert [(one.agent, one.state) for one in ada.present()] == [("new", None)]
    assert [one.agent for one in ada.present(all=True)] == ["new", "old"]


def test_a_record_is_kept_for_a_day(bus):
    bus.here()

    left = ask(bus, "PTTL", bus.scope.keys.who("ada"))
    assert KEPT * 1000 - 60_000 < left <= KEPT * 1000


def test_the_list_is_bounded_and_read_in_pages(connect):
    ada = connect("ada")
    now = ada.scope.now()
    named = [word for n in range(250) for word in (str(now - n), f"agent-{n}")]
    ask(ada, "ZADD", ada.scope.keys.agents, *named)

    assert [one.agent for one in ada.present()] == [f"agent-{n}" for n in range(30)]
    assert len(ada.present(limit=None)) == 250
    assert ada.present(limit=0) == []
    assert len(ada.present(limit=150, all=True)) == 150


def test_leases_that_have_not_ended_and_unread_messages_are_shown(connect):
    ada, keys = connect("ada"), connect().scope.keys
    ada.here()
    now = int(ada.scope.now() * 1000)
    for pattern, agent, until in (
        *(("src/**", "ada", now + 60_000), ("docs/*", "ada", now + 60_000)),
        *(("old/*", "ada", now - 1), ("x", "bob", now + 60_000)),
    ):
        lease = {"agent": agent, "pattern": pattern, "why": "x", "until": until, "token": 7}
        ask(ada, "HSET", keys.leases, f"{pattern}\n{agent}", json.dumps(lease))
    ids = [ask(ada, "XADD", keys.inbox("ada"), "*", "message", str(n)) for n in range(60)]
    ask(ada, "HSET", keys.inbox_at("ada"), "heard", ids[9])

    (found,) = ada.present()

    assert found.leases == ("docs/*", "src/**")
    assert found.unread == 50


@pytest.mark.parametrize("value", ["{", "[1]", "1", "null", '{"pattern":1}', '{"pattern":"x"}'])
def test_leases_of_another_form_are_passed_over(bus, value):
    bus.here()
    ask(bus, "HSET", bus.scope.keys.leases, "x\nada", value)

    assert [one.leases for one in bus.present()] == [()]


def test_a_record_of_another_form_hides_no_other(connect):
    ada, keys = connect("ada"), connect().scope.keys
    ada.here(doing="x")
    ask(ada, "ZADD", keys.agents, str(ada.scope.now()), "text", str(ada.scope.now()), "junk")
    ask(ada, "SET", keys.who("text"), "x")
    ask(ada, "HSET", keys.who("junk"), "state", "\x1b", "seen", "soon", "pid", "-1")
    ask(ada, "SET", keys.inbox("ada"), "x")
    ask(ada, "SET", keys.leases, "x")

    found = {one.agent: one for one in ada.present()}

    assert found["ada"].doing == "x"
    assert (found["junk"].state, found["junk"].pid, found["text"].state) == (None, None, None)


@pytest.mark.parametrize("state", ["", "busy", "Active", 7])
def test_other_states_are_refused(bus, state):
    with pytest.raises(agentbus.UsageError, match="the state is"):
        bus.here(state=state)


def test_a_long_description_is_refused(bus):
    with pytest.raises(agentbus.InvalidPayload, match="has 201 characters"):
        bus.here(doing="x" * 201)
    bus.here(doing="x" * 200)


async def test_coroutines_have_the_same_verbs(abus):
    await abus.here(doing="x")

    assert [(one.agent, one.doing) for one in await abus.present()] == [("ada", "x")]


# -- the verb --


def test_the_verb_says_what_this_one_does_and_lists_all(real_shell: Shell):
    real_shell.ok("speak", "hi", "--agent", "bob")

    first, second = real_shell.records("who", "--doing", "the parser")

    assert list(first) == [
        *(
            "agent",
            "state",
            "seen",
            "client",
            "host",
            "branch",
            "doing",
            "leases",
            "unread",
            "topics",
        ),
    ]
    assert (first["agent"], first["state"], first["doing"]) == ("ada", "active", "the parser")
    assert (second["agent"], second["state"]) == ("bob", None)
    lines = real_shell.ok("who").splitlines()
    assert lines[0].startswith("ada active ")
    assert lines[0].endswith(": the parser")
    assert lines[1].startswith("bob seen ")


def test_the_verb_says_that_there_are_more(real_shell: Shell):
    for agent in ("ada", "bob"):
        real_shell.ok("speak", "hi", "--agent", agent)

    done = real_shell.run("who", "--max", "1")

    assert done.stdout.startswith("bob seen ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == "agentbus: more agents are present: give a larger --max\n"


def test_what_others_wrote_stays_on_one_line_and_is_cut(real_shell: Shell, real_url, project):
    with agentbus.connect(real_url, project=project, agent="evil\N{LINE SEPARATOR}x") as bus:
        place = {"host": "h" * 400, "branch": "a\nb"}
        bus.runner.run(presence.here(bus.scope, doing="one\ntwo\x1b[31m", place=place))

    (line,) = real_shell.ok("who").splitlines()

    start = re.sub(r" active \d s, ", " active 0 s, ", line)
    assert start.startswith('"evil\\u2028x" active 0 s, on ' + "h" * 57 + "...")
    assert line.endswith(r', "a\nb": one\ntwo\x1b[31m')
    assert len(line) < 200


def test_the_session_of_a_client_is_recorded(real_shell: Shell):
    env = {"CODEX_THREAD_ID": "t-1", "AGENTBUS_AGENT": ""}

    (found,) = real_shell.records("who", "--doing", "x", env=env)

    assert found["client"] == "codex"
    assert found["agent"].startswith("codex-")


# -- branches --


def git(where: pathlib.Path, *words: str) -> None:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *who, *words], cwd=where, check=True, capture_output=True)


@pytest.fixture
def repository_of(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "shop"
    made.mkdir()
    git(made, "init", "--quiet", "--initial-branch", "trunk")
    git(made, "commit", "--quiet", "--allow-empty", "--message", "first")
    return made


def test_the_branch_of_each_work_tree_is_found(repository_of):
    git(repository_of, "worktree", "add", "--quiet", "-b", "feature/x", "../tree")
    git(repository_of, "clone", "--quiet", "--bare", ".", "../bare.git")

    assert repository.branch(str(repository_of)) == "trunk"
    assert repository.branch(str(repository_of.parent / "tree")) == "feature/x"
    assert repository.branch(str(repository_of.parent / "bare.git")) == "trunk"


def test_without_a_branch_the_commit_is_shown(repository_of):
    git(repository_of, "checkout", "--quiet", "--detach")

    found = repository.branch(str(repository_of))

    assert found is not None
    assert len(found) == 8
    assert repository.branch(str(repository_of.parent)) is None
