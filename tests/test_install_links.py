"""Links that came with a repository: installing follows them within it, and never out of it."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from tests.installing import User

# For each thing that is installed in a repository: the words, the path of the link, and whether that is a
# directory; of a file, also the text that it leads to.
OUTSIDE = {
    "agents-md": (["agents-md"], "AGENTS.md", False),
    "agents-md in a scope": (["agents-md", "--scope", "project"], "AGENTS.md", False),
    "cursor": (["cursor", "--scope", "project"], ".cursor", True),
    "cursor's hooks": (["cursor", "--scope", "project"], ".cursor/hooks.json", False),
    "cursor's servers": (["cursor", "--scope", "project"], ".cursor/mcp.json", False),
    "cursor's rules": (["cursor"], ".cursor/rules", True),
    "cursor's rule": (["cursor"], ".cursor/rules/agentbus.mdc", False),
    "opencode": (["opencode", "--scope", "project"], ".opencode", True),
    "opencode's plugins": (["opencode", "--scope", "project"], ".opencode/plugins", True),
    "opencode's plugin": (
        ["opencode", "--scope", "project"],
        ".opencode/plugins/agentbus.js",
        False,
    ),
    "claude": (["claude", "--scope", "project"], ".claude", True),
    "claude's settings": (["claude", "--scope", "project"], ".claude/settings.json", False),
    "git's hooks": (["--git"], ".git/hooks", True),
    "git's hook": (["--git"], ".git/hooks/pre-commit", False),
}


@pytest.fixture
def user(tmp_path: pathlib.Path) -> User:
    return User(tmp_path, "claude", "opencode")


def link(path: pathlib.Path, target: pathlib.Path, *, directory: bool, text: str = "{}\n") -> None:
    """Make a link to a directory, or to a file with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if directory:
        target.mkdir()
        if path.is_dir():
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
    else:
        target.write_text(text)
    path.symlink_to(target)


def tree(top: pathlib.Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_link_out_of_the_repository_is_refused_and_nothing_is_written(user, case):
    words, name, directory = OUTSIDE[case]
    target = user.home / "theirs"
    link(user.root / name, target, directory=directory)
    before = user.files()

    done = user.run("install", *words)

    assert done.code == 4
    assert f"{user.root / name}" in done.err.decode()
    assert f" is {target}" in done.err.decode()
    assert user.calls() == []
    # The folder that clients read may be there.
    assert {
        path: data for path, data in user.files().items() if ".local/share/agentbus" not in path
    } == before


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_was_installed_before_the_link_came_is_not_taken_out_through_it(user, case):
    words, name, _ = OUTSIDE[case]
    user.install(*words)
    user.calls()
    path, target = user.root / name, user.home / "theirs"
    if path.exists():
        path.rename(target)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    before = user.files()

    assert user.run("uninstall", *words).code == 4
    assert user.calls() == []
    assert user.files() == before


@pytest.mark.parametrize("name", ["AGENTS.md", ".cursor/hooks.json"])
@pytest.mark.parametrize("target", [".git/config", ".git/hooks/pre-push"])
def test_a_link_to_a_file_of_git_is_refused(user, name, target):
    path = user.root / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(user.root / target)
    before = tree(user.root / ".git")

    client = "agents-md" if name == "AGENTS.md" else "cursor"
    assert user.run("install", client, "--scope", "project").code == 4
    assert tree(user.root / ".git") == before


@pytest.mark.parametrize("verb", ["--dry-run", "--check", "--print"])
def test_no_way_of_install_shows_a_file_outside_of_the_repository(user, verb):
    link(user.root / ".cursor", user.home / "theirs", directory=True)
    (user.home / "theirs/hooks.json").write_text('{"secret": 1}')

    done = user.run("install", "cursor", "--scope", "project", verb)

    assert done.code in (4, 6)
    assert b"secret" not in done.out + done.err
    assert b"which is not a file of the repository" in done.out + done.err


@pytest.mark.parametrize(
    ("words", "name", "target"),
    [
        (["agents-md"], "AGENTS.md", "docs/agents.md"),
        (["cursor", "--scope", "project"], ".cursor", "tools/cursor"),
        (["opencode", "--scope", "project"], ".opencode", "tools/opencode"),
    ],
)
def test_a_link_within_the_repository_is_followed_and_the_real_path_is_printed(
    user, words, name, target
):
    (user.root / target).parent.mkdir()
    link(user.root / name, user.root / target, directory="." not in target)
    (user.root / "tools").mkdir(exist_ok=True)
    (user.root / "tools/keep").touch()
    before = user.files()

    steps = user.install(*words)

    assert any(f" {user.root / target}" in step for step in steps)
    assert not any(f" {user.root / name}" in step for step in steps)
    assert (user.root / name).is_symlink()
    assert user.install(*words) == [step.replace(": done", ": already") for step in steps]
    user.uninstall(*words)
    assert user.files() == before
    assert (user.root / name).is_symlink()


def test_a_link_of_the_users_own_settings_is_followed_and_the_real_path_is_printed(user):
    link(user.home / ".cursor", user.home / "dotfiles", directory=True)

    steps = user.install("cursor")

    assert "cursor: edit ~/dotfiles/hooks.json: done" in steps
    assert (user.home / "dotfiles/mcp.json").exists()


def test_a_repository_that_is_reached_by_a_link_is_itself(user, tmp_path):
    (tmp_path / "short").symlink_to(user.root)
    user.root = tmp_path / "short"

    assert user.install("agents-md") == [f"agents-md: edit {tmp_path}/shop/AGENTS.md: done"]


def test_the_hook_of_git_in_a_work_tree_is_that_of_its_repository(user):
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for words in (
        ["commit", "-q", "--allow-empty", "-m", "one"],
        ["worktree", "add", "-q", "../tree"],
    ):
        subprocess.run([*git, *words], cwd=user.root, check=True)
    main, user.root = user.root, user.root.with_name("tree")

    user.install("--git")

    assert (main / ".git/hooks/pre-commit").exists()


def test_a_command_of_a_hook_that_came_with_the_repository_is_not_run_by_the_check(user):
    path = user.root / ".cursor/hooks.json"
    path.parent.mkdir()
    command = f"{user.home}/theirs hook cursor stop"
    path.write_text(json.dumps({"version": 1, "hooks": {"stop": [{"command": command}]}}))
    (user.home / "theirs").write_text("#!/bin/sh\ntouch ~/ran\n")
    (user.home / "theirs").chmod(0o755)
    user.install("cursor", "--scope", "project")
    # After ours, so that it would be taken for it.
    settings = json.loads(path.read_text())
    settings["hooks"]["stop"].reverse()
    path.write_text(json.dumps(settings))

    user.check("cursor", "--scope", "project")

    assert not (user.home / "ran").exists()
