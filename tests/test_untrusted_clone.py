"""What the files of a clone do to a user who enters it: nothing is sent, and nothing is run."""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
from collections.abc import Iterator

import pytest

from agentbus.agents import sessions
from agentbus.commands import _staged
from agentbus.errors import UsageError
from tests import inprocess
from tests.repositories import make_bare

TRUSTING = "[agentbus]\n\ttrust = true\n\tproject = payroll\n"


@pytest.fixture
def theirs() -> Iterator[socket.socket]:
    """The server of somebody else, which listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture(params=["clone", "unpacked", "submodule"])
def entered(
    request: pytest.FixtureRequest, theirs: socket.socket, tmp_path: pathlib.Path
) -> pathlib.Path:
    """A directory of files that came with a repository, which make it a repository that names a server."""
    above = tmp_path / "above"
    subprocess.run(["git", "init", "-q", above], check=True)
    if request.param == "submodule":
        subprocess.run(["git", "init", "-q", above / "library"], check=True)
    place = above if request.param == "clone" else above / "library"
    if request.param == "unpacked":
        place = tmp_path / "unpacked"
    bare = make_bare(place / "docs" / "build", TRUSTING)
    # The user trusts the repository around a submodule, not the submodule.
    if request.param == "submodule":
        subprocess.run(["git", "-C", above, "config", "agentbus.trust", "true"], check=True)
    url = f"redis://127.0.0.1:{theirs.getsockname()[1]}"
    (bare / ".agentbus.yaml").write_text(f"url: {url}\n")
    return bare


VERBS = ["whoami", "speak hi", "prime", "publish mail 1", "inbox", "top --once", "web", "mcp"]


def test_no_verb_reaches_the_server_that_the_files_of_a_clone_name(
    entered, theirs, tmp_path, monkeypatch
):
    monkeypatch.chdir(entered)
    plain = {"HOME": str(tmp_path), "AGENTBUS_URL": "", "AGENTBUS_PROJECT": ""}
    # git's own variables change nothing.
    plain |= {"GIT_DIR": str(entered), "GIT_CEILING_DIRECTORIES": str(entered.parent)}
    with inprocess.environment(plain):
        for verb in (*VERBS, "clear --force"):
            done = inprocess.run(*verb.split())
            assert (done.code, b"is not trusted" in done.err) == (2, True), verb
        event = {"session_id": "s1", "hook_event_name": "UserPromptSubmit", "cwd": str(entered)}
        monkeypatch.chdir(tmp_path)
        hook = inprocess.run("hook", "claude", "UserPromptSubmit", stdin=json.dumps(event).encode())

    assert hook == (0, b"", b"")
    with pytest.raises(BlockingIOError):
        theirs.accept()


@pytest.fixture
def monitored(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An unpacked directory whose files name a program that git is to run; it leaves a file `ran`."""
    place = tmp_path / "unpacked"
    program = f"touch {tmp_path}/ran; false"
    core = f'bare = false\n\tworktree = {place}\n\tfsmonitor = "{program}"\n'
    make_bare(place, f"[core]\n\trepositoryformatversion = 0\n\t{core}")
    (place / "file").write_text("x")
    monkeypatch.chdir(place)
    return place


def test_git_runs_no_program_that_the_files_of_a_directory_name(monitored, tmp_path):
    assert sessions._changed(str(monitored)) is None
    with pytest.raises(UsageError, match="git cannot list the staged paths"):
        _staged.staged()

    assert not (tmp_path / "ran").exists()
    # The files are such that git would run it.
    subprocess.run(["git", "status"], check=False, capture_output=True)
    assert (tmp_path / "ran").exists()


def test_trust_is_not_read_from_what_a_git_config_includes(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path / "clone"], check=True)
    monkeypatch.chdir(tmp_path / "clone")
    (tmp_path / "clone" / "shared").write_text(TRUSTING)
    subprocess.run(["git", "config", "include.path", "../shared"], check=True)
    (tmp_path / "clone" / ".agentbus.yaml").write_text("url: redis://127.0.0.1:1\n")
    plain = {"HOME": str(tmp_path), "AGENTBUS_URL": "", "AGENTBUS_PROJECT": ""}

    with inprocess.environment(plain):
        done = inprocess.run("whoami")

    assert (done.code, b"is not trusted" in done.err) == (2, True)
