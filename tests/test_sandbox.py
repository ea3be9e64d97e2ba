"""Commands in a sandbox, such as that of Codex: they end at once, and say what works there."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import subprocess
import sys

import pytest

import agentbus
from agentbus.store import sandbox
from agentbus.store.operation import attempt
from agentbus.store.steps import Command, Denied
from tests import sandboxing
from tests.disks import disk
from tests.servers import ROOT, Shell, program

SAID = "a sandbox keeps this command from the bus"
SETTING = "sandbox_workspace_write.network_access = true"
# Who would wait for the server, would do so for longer than the test.
PATIENT = {"AGENTBUS_DEADLINE": "300"}

needs_filters = pytest.mark.skipif(
    not sandboxing.available(), reason="this system has no filters of system calls"
)


def sandboxed(
    shell: Shell, *argv: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command line in the sandbox."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "sandboxing.py"), *argv],
        env={**shell.environment, **PATIENT, **(env or {})},
        cwd=shell.home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def homely(tmp_path: pathlib.Path, project: str) -> Shell:
    """A shell without a URL, in which no server runs."""
    return Shell(tmp_path / "home", {"AGENTBUS_PROJECT": project, "AGENTBUS_AGENT": "ada"})


@needs_filters
@pytest.mark.parametrize(
    "words",
    [
        ("speak", "hi"),
        ("overhear",),
        ("inbox",),
        ("prime",),
        ("await", "built"),
        ("work", "mail", "--", "true"),
        ("server", "start"),
        ("speak", "hi", "--url", "redis://127.0.0.1"),
        ("speak", "hi", "--url", "redis://bus.example.com"),
        ("speak", "hi", "--url", "redis+sentinel://127.0.0.1/main"),
        ("speak", "hi", "--url", "redis+cluster://127.0.0.1"),
    ],
    ids=" ".join,
)
def test_a_command_that_may_not_connect_says_so_at_once(homely, words):
    done = sandboxed(homely, program(), *words)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"agentbus: {SAID} (Operation not permitted)\nhint: " in done.stderr
    assert "MCP tools" in done.stderr
    assert SETTING in done.stderr
    assert "repair" not in done.stderr
    # No server was started that nobody could reach.
    assert not list(homely.home.rglob("server.log"))


@needs_filters
@pytest.mark.parametrize("words", [("speak", "hi"), ("server", "start"), ("doctor",)], ids=" ".join)
def test_so_does_one_that_may_have_no_socket(homely, words):
    done = sandboxed(homely, "--no-sockets", program(), *words)

    assert done.returncode == (6 if words == ("doctor",) else 1)
    assert f"{SAID} (Operation not permitted)" in done.stdout + done.stderr


@needs_filters
def test_a_running_server_does_not_help_who_may_not_connect(real_shell: Shell):
    done = sandboxed(real_shell, program(), "speak", "hi", env={"CODEX_SANDBOX": "seatbelt"})

    assert done.returncode == 1
    assert f"or set {SETTING} in Codex's config.toml" in done.stderr


@needs_filters
def test_doctor_names_the_sandbox(homely):
    done = sandboxed(homely, program(), "doctor", "--json")

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 6
    assert found[0]["check"] == "connection"
    assert found[0]["found"] == f"{SAID} (Operation not permitted)"
    assert SETTING in found[0]["remedy"]
    assert {one["check"] for one in found} >= {"identity"}


@needs_filters
def test_a_server_that_cannot_be_reached_is_not_waited_for_until_it_stops(shell: Shell):
    shell.ok("speak", "hi")

    done = sandboxed(shell, program(), "server", "stop")

    assert done.returncode == 1
    assert SAID in done.stderr


@needs_filters
@pytest.mark.parametrize("url", ["redis://127.0.0.1", "redis://bus.example.com", "unix:///none"])
def test_coroutines_are_not_kept_waiting_either(homely, url):
    code = (
        "import agentbus.aio, agentbus.errors, asyncio, sys\n"
        "async def main():\n"
        "    async with agentbus.aio.connect(sys.argv[1]) as bus: await bus.speak('hi')\n"
        "try: asyncio.run(main())\n"
        "except agentbus.errors.Sandboxed as error: print(error.message)\n"
    )

    done = sandboxed(homely, sys.executable, "-c", code, url)

    assert done.stdout.startswith(SAID), done.stderr


@needs_filters
def test_the_name_and_the_settings_are_shown_in_a_sandbox(homely):
    assert sandboxed(homely, program(), "whoami").returncode == 0


@pytest.fixture
def read_only(tmp_path: pathlib.Path):
    """A directory on a disk that is mounted read-only, with its own home."""
    with disk(tmp_path / "fixed", "ro") as place:
        yield place


@pytest.mark.parametrize("words", [("speak", "hi"), ("overhear",), ("server", "start")])
def test_a_state_directory_that_cannot_be_written_is_reported_as_a_sandbox(
    homely, read_only, words
):
    done = homely.run(*words, env={"XDG_STATE_HOME": str(read_only), **PATIENT})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"agentbus: {SAID} (Read-only file system)\nhint: ")
    assert "repair" not in done.stderr


@pytest.mark.parametrize(
    ("number", "answer"),
    [(errno.EROFS, True), (errno.EPERM, True), (errno.EACCES, True), (errno.ENOSPC, False)],
)
def test_what_the_permissions_of_a_file_allow_only_a_sandbox_forbids(tmp_path, number, answer):
    error = OSError(number, os.strerror(number))

    assert (sandbox.read_only(error, str(tmp_path / "a" / "b")) is not None) is answer


def test_a_socket_that_is_closed_to_this_user_is_no_sandbox(monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    found = sandbox.kept_off(PermissionError(errno.EACCES, "Permission denied"), "/run/bus.sock")

    assert type(found) is agentbus.BackendUnavailable
    assert (
        found.message
        == "this user may not connect to the socket '/run/bus.sock' (Permission denied)"
    )


@pytest.mark.parametrize("answered", [False, True])
def test_only_what_was_connected_before_goes_on_trying(answered):
    """A firewall's rules may change under a worker, and change back."""
    denied = Denied(sandbox.sandboxed(PermissionError(errno.EPERM, "Operation not permitted")))

    def op():
        return (yield Command("PING"))

    running = attempt(op(), where="here", deadline=60, answered=answered)
    next(running)
    if not answered:
        with pytest.raises(agentbus.Sandboxed):
            running.throw(denied)
        return
    running.throw(denied)
    running.send(None)
    with pytest.raises(StopIteration) as end:
        running.send("PONG")
    assert end.value.value == "PONG"


def test_a_server_that_is_away_is_no_sandbox(tmp_path, project):
    with (
        agentbus.connect(f"unix://{tmp_path}/none", project=project, deadline=0.01) as bus,
        pytest.raises(agentbus.BackendUnavailable) as away,
    ):
        bus.speak("hi")

    assert type(away.value) is agentbus.BackendUnavailable
