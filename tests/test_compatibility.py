"""What stays as it is from version to version: the public surface, and work that two versions share."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig
import venv

import pytest

import agentbus
from tests import public_surface
from tests.source_tree import ROOT

# The wheel of the release before, from the first release on; until then the one of this tree stands for it.
RELEASES = pathlib.Path(__file__).parent / "releases"


def test_the_public_surface_is_the_recorded_one():
    recorded = set(public_surface.RECORD.read_text().splitlines())
    present = set(public_surface.surface())

    # A change is a decision, and what was stable needs an upgrade note: python -m tests.public_surface
    assert (sorted(recorded - present), sorted(present - recorded)) == ([], [])


def test_every_mark_of_what_is_provisional_is_read():
    pages = ("cli.md", "python.md")
    marks = sum(
        (ROOT / "docs/reference" / page).read_text().count(public_surface.MARK) for page in pages
    )
    lines = [line for line in public_surface.surface() if "provisional" in line.split(":")[0]]

    assert 50 < marks < len(lines)
    assert "verb, provisional: work --worktree" in lines
    assert "verb, stable: work --batch" in public_surface.surface()


@pytest.fixture(scope="module")
def released(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The interpreter of an environment with the version before this one."""
    before = max(RELEASES.glob("*.whl"), key=lambda path: path.stat().st_mtime, default=wheel)
    place = tmp_path_factory.mktemp("released")
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin/python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--no-deps", "--no-index", str(before)),
        ],
        check=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


# Fails each task once, so that it is retried by whichever worker is free.
HANDLER = """
import sys, agentbus
bus = agentbus.connect(sys.argv[1], project=sys.argv[2], agent=sys.argv[3])
def handle(delivery):
    if delivery.attempt == 1:
        raise agentbus.Retry("not yet", after=0.01)
    delivery.ack([delivery.payload, sys.argv[3]])
worker = bus.subscribe("jobs", handle, concurrency=4, attempts=100, visibility=2.0)
worker.run()
"""


@pytest.mark.slow
def test_workers_of_two_versions_share_one_queue(released, real_url, project, tmp_path):
    program = tmp_path / "work.py"
    program.write_text(HANDLER)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def start(name: str) -> subprocess.Popen[bytes]:
        python = released if name == "before" else pathlib.Path(sys.executable)
        command = [str(python), str(program), real_url, project, name]
        return subprocess.Popen(command, env=environment, cwd=tmp_path)

    with agentbus.connect(real_url, project=project, agent="publisher") as bus:
        jobs = bus.queue("jobs")
        ids = jobs.publish_many(range(600))
        workers = {name: start(name) for name in ("before", "now")}
        try:
            # Each version is killed amid its tasks, and the other takes them over.
            for name, task in (("before", ids[50]), ("now", ids[200])):
                jobs.result(task, wait=60)
                workers[name].kill()
                workers[name].wait()
                workers[name] = start(name)
            results = [jobs.result(task, wait=60) for task in ids]
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()

    assert sorted(number for number, _ in results) == list(range(600))
    assert {by for _, by in results} == {"before", "now"}
