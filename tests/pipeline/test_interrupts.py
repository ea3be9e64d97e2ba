"""Interrupted, the verbs of the pipeline end soon, quietly, and leave nothing half-done."""

from __future__ import annotations

import pathlib
import signal
import subprocess

import pytest

from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.log import Log
from tests.pipeline.streams import archived
from tests.servers import Server, Shell


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait until a process has ended; returns its code and stderr."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def begun(process: subprocess.Popen[str], number: int) -> None:
    """Signal a process as soon as it has started Java."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text().split():
        assert process.poll() is None, process.communicate()
    process.send_signal(number)


@pytest.fixture
def temporary(tmp_path) -> pathlib.Path:
    """A directory for temporary files of a test's own."""
    made = tmp_path / "tmp"
    made.mkdir()
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_archive_that_is_interrupted_as_spark_starts_ends(
    real_shell: Shell, tmp_path, temporary, number
):
    path = tmp_path / "bus"
    process = real_shell.start("archive", str(path), env={"TMPDIR": str(temporary)})
    begun(process, number)

    assert ended(process) == (130, "")

    assert not path.exists()
    assert not [each.name for each in temporary.iterdir() if each.name.startswith("agentbus")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_archive_that_is_interrupted_in_the_middle_ends_and_leaves_no_version(
    real_shell: Shell, valkey: Server, project, tmp_path, temporary, number
):
    path = tmp_path / "bus"
    valkey.ask("XADD", f"{project}:q:mail", "1-1", "payload", "1")
    real_shell.ok("archive", str(path), timeout=240)
    for n in range(2, 40):
        valkey.ask("XADD", f"{project}:q:mail", f"{n}-1", "payload", "x" * 100_000)
    process = real_shell.start("archive", str(path), env={"TMPDIR": str(temporary)})
    begun_writing(path, process)
    process.send_signal(number)

    code, err = ended(process)

    assert (code, err) in ((130, ""), (0, ""))
    state = Log(place(path)).state()
    assert state.rows == (1 if code == 130 else 39)
    # Whoever comes next finds all as it should be.
    real_shell.ok("archive", str(path), timeout=240)
    seen = archived(str(path))
    assert len(set(seen)) == len(seen) == 39
    assert not [each.name for each in temporary.iterdir() if each.name.startswith("agentbus")]


def begun_writing(path: pathlib.Path, process: subprocess.Popen[str]) -> None:
    """Wait until a version is being written."""
    while not list((path / "_data").rglob("0000000003-*.parquet")):
        assert process.poll() is None, process.communicate()


@pytest.mark.slow
def test_one_that_goes_on_ends_after_the_version_under_way(
    real_shell: Shell, valkey: Server, project, tmp_path
):
    path = tmp_path / "bus"
    valkey.ask("XADD", f"{project}:q:mail", "1-1", "payload", "1")
    process = real_shell.start("archive", str(path), "--continuous", "--json")
    assert process.stdout is not None
    assert '"rows":1' in process.stdout.readline().replace(" ", "")
    for n in range(2, 40):
        valkey.ask("XADD", f"{project}:q:mail", f"{n}-1", "payload", "x" * 100_000)
    begun_writing(path, process)
    process.send_signal(signal.SIGINT)

    assert ended(process) == (0, "")

    assert Log(place(path)).state().rows == 39
