"""Interrupted, the verbs of the pipeline end soon, quietly, and leave nothing half-done."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest

from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.spark import java
from tests.pipeline.streams import archived
from tests.servers import Server, Shell
from tests.tiers import nightly


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
    real_shell: Shell, valkey: Server, project, tmp_path, temporary, number
):
    path = tmp_path / "bus"
    valkey.ask("XADD", f"{project}:q:mail", "1-1", "payload", "1")
    process = real_shell.start("archive", str(path), env={"TMPDIR": str(temporary)})
    begun(process, number)

    assert ended(process) == (130, "")

    assert ArchiveTable(place(path)).snapshot().rows == 0
    assert not [each.name for each in temporary.iterdir() if each.name.startswith("agentbus")]


@pytest.mark.parametrize("killed", ["spark", nightly("launcher")])
def test_that_java_is_killed_as_it_starts_is_a_temporary_failure(
    real_shell: Shell, valkey: Server, project, tmp_path, killed
):
    valkey.ask("XADD", f"{project}:q:mail", "1-1", "payload", "1")
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    # Spark asks another one first how to start it.
    launcher = f'exec {java.find().program} "$@"' if killed == "spark" else "kill -KILL $$"
    program.write_text(
        "#!/bin/sh\n"
        """[ "$1" = -version ] && echo 'version "21"' && exit\n"""
        f'case "$*" in *launcher.Main*) {launcher} ;; esac\n'
        "kill -KILL $$\n"
    )
    program.chmod(0o755)
    home = str(program.parent.parent)

    done = real_shell.run("archive", str(tmp_path / "bus"), "--continuous", env={"JAVA_HOME": home})

    assert done.returncode == 1, done.stderr
    assert "Java process was killed as it started" in done.stderr


@pytest.mark.slow
def test_that_java_is_killed_in_a_round_is_a_temporary_failure(
    real_shell: Shell, valkey: Server, project, tmp_path
):
    path = tmp_path / "bus"
    for n in range(40):
        valkey.ask("XADD", f"{project}:q:mail", f"{n + 1}-1", "payload", "x" * 100_000)
    process = real_shell.start("archive", str(path), "--continuous")
    begun_writing(path, process, version=2)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in children.read_text().split():
        os.kill(int(child), signal.SIGKILL)

    code, err = ended(process)

    assert (code, len(err.splitlines())) == (1, 2), err
    assert err.startswith("agentbus: Spark's Java process is gone")
    real_shell.ok("archive", str(path), timeout=240)
    assert len(archived(str(path))) == 40


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
    state = ArchiveTable(place(path)).snapshot()
    assert state.rows == (1 if code == 130 else 39)
    # Whoever comes next finds all as it should be.
    real_shell.ok("archive", str(path), timeout=240)
    seen = archived(str(path))
    assert len(set(seen)) == len(seen) == 39
    assert not [each.name for each in temporary.iterdir() if each.name.startswith("agentbus")]


def begun_writing(path: pathlib.Path, process: subprocess.Popen[str], *, version: int = 3) -> None:
    """Wait until a version is being written."""
    while not list(path.rglob(f"{version:010d}-*.parquet")):
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

    assert ArchiveTable(place(path)).snapshot().rows == 39
