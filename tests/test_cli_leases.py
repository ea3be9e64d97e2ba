"""The verb lease: takes, lists, checks and drops, and guards commits."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import pytest

import agentbus
from tests.servers import Shell, program

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d"
FIELDS = ["pattern", "agent", "why", "until", "token", "sub"]


@pytest.fixture
def shell(real_shell: Shell) -> Shell:
    return real_shell


@pytest.fixture
def shop(shell: Shell, tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with a commit, made by git itself."""
    root = tmp_path / "shop"
    (root / "src").mkdir(parents=True)
    git(shell, root, "init", "-q")
    (root / "src/a.py").write_text("a\n")
    (root / "src/b.py").write_text("b, which is longer\n")
    git(shell, root, "add", ".")
    git(shell, root, "commit", "-q", "-m", "first")
    return root


def git(shell: Shell, root: pathlib.Path, *words: str) -> str:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    # A commit of a test runs in that test's repository, also under a hook of git's.
    environment = {k: v for k, v in shell.environment.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *who, *words],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_lease_prints_each_lease_with_its_end_and_token(shell):
    said = shell.ok("lease", "src/**", "docs/a.md", "--why", "parser")

    lines = said.splitlines()
    assert re.fullmatch(rf"src/\*\* until {CLOCK} \(token \d+\)", lines[0])
    assert re.fullmatch(rf"docs/a.md until {CLOCK} \(token \d+\)", lines[1])


def test_a_lease_as_json(shell):
    (record,) = shell.records("lease", "src/**", "--why", "parser", "--ttl", "2m")

    assert list(record) == FIELDS
    assert (record["pattern"], record["agent"], record["why"]) == ("src/**", "ada", "parser")
    assert re.fullmatch(TIME, record["until"])
    assert isinstance(record["token"], int)
    assert shell.records("lease") == [record]


def test_without_a_path_the_leases_are_listed_with_their_holders(shell):
    assert shell.ok("lease") == ""
    shell.ok("lease", "src/**", "--why", 'the "new" parser')
    shell.ok("lease", "with space", "--agent", "bob")

    first, second = shell.ok("lease").splitlines()
    assert re.fullmatch(
        rf"src/\*\* by ada until {CLOCK} \(\"the 'new' parser\", token \d+\)", first
    )
    assert re.fullmatch(rf'"with space" by bob until {CLOCK} \(token \d+\)', second)


def test_a_refusal_says_who_why_until_when_and_which_and_never_names_force(shell):
    shell.ok("lease", "src/**", "--why", "parser")

    done = shell.run("lease", "docs", "src/a.py", "--agent", "bob")

    assert (done.returncode, done.stdout) == (4, "")
    assert re.fullmatch(
        rf"agentbus: src/a.py is leased by ada until {CLOCK} \(\"parser\", src/\*\*\)\n"
        r"hint: do something else, or ask: agentbus tell ada '…\?' --wait 300\n",
        done.stderr,
    )
    for args in (["lease", "src/a.py"], ["lease", "--drop", "src/**"], ["lease", "--check", "src"]):
        assert "force" not in shell.run(*args, "--agent", "bob").stderr


def test_a_reason_cannot_forge_a_line(shell):
    assert shell.run("lease", "a", "--why", "x\nagentbus: fine").returncode == 2
    shell.ok("lease", "a", "--why", "x\u2028\u202ey")

    said = shell.run("lease", "a", "--agent", "bob").stderr
    assert len(said.splitlines()) == 2
    assert r"x\u2028\u202ey" in said


def test_force_says_who_has_lost_what(shell):
    shell.ok("lease", "src/**")

    done = shell.run("lease", "src/a.py", "--force", "--agent", "bob")

    assert (done.returncode, done.stderr) == (0, "agentbus: ada has lost the lease of src/**\n")


def test_check_prints_what_is_free_and_what_is_this_agents(shell):
    shell.ok("lease", "src/**")

    first, second = shell.ok("lease", "--check", "src/a.py", "docs/").splitlines()
    assert re.match(r"src/a.py is this agent's: src/\*\* until", first)
    assert second == "docs/** is free"
    free = shell.records("lease", "--check", "docs/")
    assert free == [{"pattern": "docs/**", **dict.fromkeys(FIELDS[1:])}]
    assert shell.run("lease", "--check", "src/a.py", "--agent", "bob").returncode == 4


def test_drop_ends_leases_and_says_which(shell):
    shell.ok("lease", "a", "b", "c")

    assert shell.ok("lease", "--drop", "b") == "b dropped\n"
    assert shell.run("lease", "--drop", "b").returncode == 5
    assert shell.run("lease", "--drop", "a", "--agent", "bob").returncode == 4
    assert {one["pattern"] for one in shell.records("lease", "--drop")} == {"a", "c"}
    assert shell.ok("lease", "--drop") == ""


@pytest.mark.parametrize(
    "args",
    [
        *(["--staged"], ["--check"], ["--check", "--drop"], ["--check", "a", "--ttl", "5"]),
        *(["--drop", "--wait", "1"], ["--why", "x"], ["--force"], ["--drop", "--force"]),
        *(["../a"], ["/etc/hosts"], [""], ["--check", "--staged", "a"], ["a", "--ttl", "0"]),
        ["/".join("abcdefghijklmnopq")],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(shell, args):
    assert shell.run("lease", *args).returncode == 2


def test_waiting_ends_with_the_lease(shell):
    shell.ok("lease", "src/**", "--ttl", "0.5")

    assert shell.ok("lease", "src/a.py", "--wait", "30", "--agent", "bob")
    done = shell.run("lease", "src/", "--wait", "0.01")
    assert done.returncode == 4
    assert "leased by bob" in done.stderr


# -- one lease, however a path is spelled --


def test_claude_and_codex_spell_one_file_in_two_ways_and_get_one_lease(shell, shop):
    linked = shop.parent / "linked"
    linked.symlink_to(shop)
    shell.ok("lease", str(shop / "src/a.py"), cwd=shop)

    for where, spelled in [
        (shop, "src/a.py"),
        (shop, "./src/../src/a.py"),
        (shop / "src", "a.py"),
        (linked / "src", "../src/a.py"),
        (shop, f"{linked}/src/a.py"),
    ]:
        done = shell.run("lease", spelled, "--agent", "codex", cwd=where)
        assert (done.returncode, "src/a.py is leased by ada" in done.stderr) == (4, True), spelled
    assert shell.run("lease", "src/A.py", "--agent", "codex", cwd=shop).returncode == 0


def test_each_work_tree_has_separate_leases_where_the_config_file_says_so(shell, shop):
    other = shop.parent / "second"
    git(shell, shop, "worktree", "add", "-q", str(other))
    project = {"AGENTBUS_PROJECT": ""}
    shell.ok("lease", "src/**", cwd=shop, env=project)
    as_bob = ("lease", "src/a.py", "--agent", "bob")
    assert shell.run(*as_bob, cwd=other, env=project).returncode == 4

    for tree in (shop, other):
        (tree / ".agentbus.yaml").write_text("lease.scope: worktree\n")
        (tree / "src/a.py").write_text("mine\n")
        git(shell, tree, "add", ".")
    (record,) = shell.records(*as_bob, cwd=other, env=project)
    assert record["pattern"] == "second/src/a.py"
    assert shell.ok("lease", "src/**", cwd=shop, env=project).startswith("shop~/src/** until")
    guard = ("lease", "--check", "--staged")
    assert shell.run(*guard, cwd=shop, env=project).returncode == 0
    refused = shell.run(*guard, cwd=other, env=project)
    assert refused.returncode == 4
    assert "agentbus: src/a.py is leased by bob" in refused.stderr
    assert "--staged :/src/a.py" in refused.stderr

    (shop / ".agentbus.yaml").write_text("lease.scope: clone\n")
    done = shell.run("lease", cwd=shop, env=project)
    assert done.returncode == 2
    assert "project, repository, worktree" in done.stderr


# -- the commit guard --


def test_the_guard_refuses_a_commit_of_what_another_agent_has_leased(shell, shop):
    hook = shop / ".git/hooks/pre-commit"
    hook.write_text(f"#!/bin/sh\nexec {program()} lease --check --staged\n")
    hook.chmod(0o755)
    (shop / "src/a.py").write_text("mine\n")
    shell.ok("lease", "src/a.py", "--agent", "bob", cwd=shop)

    # The second way to commit gives git an index of its own.
    for command in (["commit", "-q", "-a", "-m", "x"], ["commit", "-q", "src/a.py", "-m", "x"]):
        said = git(shell, shop, *command)
        assert "src/a.py is leased by bob" in said
        assert "git restore --staged :/src/a.py" in said
    assert git(shell, shop, "log", "--format=%s") == "first\n"
    shell.ok("lease", "--drop", "--agent", "bob", cwd=shop)
    assert git(shell, shop, "commit", "-q", "-a", "-m", "second") == ""


def test_the_guard_sees_deleted_renamed_and_odd_names_from_a_subdirectory(shell, shop):
    odd = [os.fsdecode(name) for name in (b"caf\xe9", b"new\nline", b"st*r", b'"q"')]
    git(shell, shop, "mv", "src/b.py", "other.py")
    git(shell, shop, "rm", "-q", "src/a.py")
    for name in odd:
        (shop / name).touch()
    git(shell, shop, "add", ".")
    (shop / "src").mkdir()

    # A star in the name of a file is not a wildcard, and conflicts with no more than that file.
    shell.ok("lease", "str", "src/c.py", "--agent", "bob", cwd=shop)
    assert shell.ok("lease", "--check", "--staged", cwd=shop / "src") == ""

    leased = ("src/a.py", "src/b.py", "other.py", "caf?", "new?line", "st*r", '"q"')
    shell.ok("lease", *leased, "--agent", "bob", cwd=shop)
    done = shell.run("lease", "--check", "--staged", cwd=shop / "src")

    assert done.returncode == 4
    assert done.stderr.count(" is leased by bob") == len(leased)


def test_the_guard_sees_a_file_deeper_than_a_lease_may_name(shell, shop):
    deep = shop.joinpath("src", *map(str, range(16)))
    deep.mkdir(parents=True)
    (deep / "q.py").touch()
    git(shell, shop, "add", ".")
    guard = ("lease", "--check", "--staged")
    shell.ok("lease", "src/0/1/*.py", "--agent", "bob", cwd=shop)
    assert shell.ok(*guard, cwd=shop) == ""

    shell.ok("lease", "src/0/**/q.py", "--agent", "bob", cwd=shop)
    done = shell.run(*guard, cwd=shop)

    assert done.returncode == 4
    assert f"{deep.relative_to(shop)}/q.py is leased by bob" in done.stderr


def test_the_guard_passes_own_leases_no_staged_paths_and_a_server_that_is_away(shell, shop):
    shell.ok("lease", "**", cwd=shop)
    (shop / "src/a.py").write_text("mine\n")
    assert shell.run("lease", "--check", "--staged", "--agent", "bob", cwd=shop).returncode == 0
    git(shell, shop, "add", ".")
    assert shell.ok("lease", "--check", "--staged", cwd=shop) == ""

    away = {"AGENTBUS_URL": f"unix://{shop}/nothing", "AGENTBUS_DEADLINE": "0.1"}
    done = shell.run("lease", "--check", "--staged", "--agent", "bob", cwd=shop, env=away)
    assert (done.returncode, done.stdout) == (0, "")
    assert "the staged paths were not checked for leases" in done.stderr


def test_the_guard_checks_any_number_of_files(shell, shop, real_url, project):
    for number in range(150):
        (shop / f"src/file{number:03}").touch()
    git(shell, shop, "add", ".")
    shell.ok("lease", "src/file*[0-9]", "src/file14?", "--agent", "bob", cwd=shop)

    done = shell.run("lease", "--check", "--staged", "--json", cwd=shop)

    assert done.returncode == 4
    assert [line.split()[1] for line in done.stderr.splitlines()[:-1]] == [
        f"src/file{number}" for number in range(141, 150)
    ]
    assert "9 more conflicts" in json.loads(done.stderr.splitlines()[-1])["error"]


def test_the_guard_outside_of_a_repository_is_a_usage_error(shell):
    done = shell.run("lease", "--check", "--staged")

    assert done.returncode == 2
    assert "run it in a repository" in done.stderr


def test_the_library_and_the_command_line_share_leases(shell, shop, real_url, project, monkeypatch):
    monkeypatch.chdir(shop)
    with agentbus.connect(real_url, project=project, agent="ada") as bus, bus.lease("src/a.py"):
        (record,) = shell.records("lease", cwd=shop)
        assert record["pattern"] == "src/a.py"
        assert shell.run("lease", "src/", "--agent", "bob", cwd=shop).returncode == 4
    assert shell.ok("lease", cwd=shop) == ""
