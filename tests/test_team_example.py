"""The example of a team runs: who did what, what was refused, and that nothing of it is left."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.forking import forking_session
from tests.servers import Server, Shell
from tests.test_examples import environment, processes_that_know

# Far longer than it takes.
_ENDS_WITHIN = 120
_PROJECT = "test-team-example"
Script = subprocess.Popen[str]


def start(home: pathlib.Path, checkout: pathlib.Path, server: Server, **more: str) -> Script:
    """Start the team as a process group of its own, from another directory."""
    (home / "tmp").mkdir(parents=True)
    return subprocess.Popen(
        forking_session(["sh", checkout / "docs/examples/team/run.sh"]),
        env=environment(home, AGENTBUS_URL=server.url, TMPDIR=str(home / "tmp"), **more),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("team")


@pytest.fixture(scope="module")
def told(home: pathlib.Path, valkey: Server) -> dict[str, list[str]]:
    """Run the team once, in a project that is kept, and return what it printed, by its titles."""
    checkout = pathlib.Path(__file__).resolve().parent.parent
    team = start(home, checkout, valkey, EXAMPLE_PROJECT=_PROJECT)
    try:
        stdout, stderr = team.communicate(timeout=_ENDS_WITHIN)
    finally:
        if team.poll() is None:
            os.killpg(team.pid, signal.SIGKILL)
    assert team.returncode == 0, stdout + stderr
    assert stderr == ""
    parts = [part.splitlines() for part in stdout.split("\n== ")]
    return {part[0]: [line for line in part[1:] if line] for part in parts}


@pytest.fixture
def shell(told: dict[str, list[str]], home: pathlib.Path, valkey: Server) -> Shell:
    return Shell(home, {"AGENTBUS_PROJECT": _PROJECT, "AGENTBUS_URL": valkey.url})


def part(told: dict[str, list[str]], title: str) -> list[str]:
    [found] = [lines for name, lines in told.items() if name.startswith(title)]
    return found


def letters(shell: Shell, *which: str) -> list[tuple[str, int]]:
    found: list[Any] = shell.records("dlq", "list", *which)
    return [(letter["payload"]["task"], letter["attempts"]) for letter in found]


def test_each_task_of_the_plan_came_to_what_its_agent_made_of_it(told):
    assert part(told, "What became of it") == [
        "built the broken login",
        "built the shop",
        "reviewed the shop's code",
        "wrote about the manual",
        "wrote about a typo on page 7",
        "reviewed the cables",
        "wrote about thanks to the testers",
        "did the chore: sweep the floor",
        "did the chore: water the plants",
        "did the chore: empty the bin",
        "built the museum",
        "uploaded the pictures",
        "buried: ProgramFailed: exit 1: the line broke while the film went up (attempt 3)",
        "wrote about the new shop",
        "buried: no rule matches, and there is no default",
    ]


def test_the_builder_did_what_was_critical_first_and_what_was_low_last(told):
    assert part(told, "The order") == [
        "built the broken login (critical)",
        "built the shop (normal)",
        "did the chore: sweep the floor (normal)",
        "built the museum (low)",
    ]


def test_the_guard_stopped_the_two_agents_that_triggered_each_other(told):
    assert part(told, "Two agents") == ["it goes in a circle: builder → reviewer → builder"]


def test_the_task_of_another_program_was_done_once(told, shell):
    assert len(part(told, "A task by plain redis-cli")) == 1
    if shutil.which("redis-cli"):
        heard = shell.records("overhear", "--topic", "inbox", "--since", "0-0")
        assert [entry["message"] for entry in heard] == ["W-17 of desk-1: wrote about the release"]


def test_everybody_was_there_when_the_project_was_halted(told):
    listed = part(told, "agentbus halt")

    assert listed[0].startswith("project halted by run")
    agents = [line.partition(",")[0] for line in listed[1:] if line[0] != " "]
    assert agents == ["builder", "flaky", "reviewer", "router", "writer"]


def test_what_failed_for_good_lies_where_it_failed(shell):
    assert letters(shell, "agent.flaky") == [("the film", 3)]
    refused = [task for task, _ in letters(shell, "incoming", "--group", "router")]
    assert refused == ["a song", "the button"]


def test_the_router_moved_each_task_once(told):
    again = shutil.which("redis-cli") is not None

    *buried, last = part(told, "The router")

    assert len(buried) == 2
    moved = f"{17 if again else 16} tasks moved{', 1 duplicates' if again else ''}"
    assert last == f"incoming: {moved}, 1 stopped, 1 dead"


def test_nothing_of_the_team_is_left(told, shell, home):
    assert processes_that_know(_PROJECT) == []
    assert list((home / "tmp").iterdir()) == []
    # And it may be taken up again: nothing is halted any more.
    assert shell.records("pause") == []


@pytest.fixture
def interrupted(tmp_path: pathlib.Path, checkout: pathlib.Path, valkey: Server) -> Iterator[Script]:
    team = start(tmp_path, checkout, valkey)
    yield team
    with team:
        if team.poll() is None:
            os.killpg(team.pid, signal.SIGKILL)


def test_a_team_that_is_interrupted_at_work_leaves_nothing(interrupted, valkey, tmp_path):
    # Given a team of which somebody has done something
    for line in interrupted.stdout:
        if line.startswith("built"):
            break

    # When the user presses Ctrl-C, which reaches the whole group
    os.killpg(interrupted.pid, signal.SIGINT)
    _, stderr = interrupted.communicate(timeout=_ENDS_WITHIN)

    # Then it says so by its code, and its processes, files and keys are gone
    assert interrupted.returncode == 130, stderr
    assert processes_that_know(str(tmp_path / "tmp")) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [key for key in valkey.ask("KEYS", "*") if key.startswith(b"example-team")] == []
