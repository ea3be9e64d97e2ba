"""Archivers are killed when they have done something, alone or with what they started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from agentbus.torture.archive.nemesis import (
    ARCHIVER,
    KILL_AT_WORK,
    TREE_KILL,
    ArchiveNemesis,
    descendants,
)
from agentbus.torture.nemesis import Client

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture
def client() -> Iterator[Client]:
    """A process that has started another one, which waits for its end."""
    found = Client(ARCHIVER, [])
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE)
    found.begin(process)
    until(lambda: descendants(process.pid) != [])
    yield found
    process.kill()
    process.communicate()


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def ticked(faults: ArchiveNemesis) -> bool:
    faults.tick()
    return faults.finished


def test_one_is_killed_only_after_it_has_done_something(client: Client) -> None:
    seen = [3]
    faults = ArchiveNemesis({KILL_AT_WORK: 1}, 0.0, 1, [client], None, seen=lambda _pid: seen[0])
    for _ in range(3):
        faults.tick()
    assert (faults.done, client.alive) == (0, True)

    seen[0] += 1
    until(lambda: ticked(faults))

    assert client.process is not None
    assert client.process.wait() == -9
    assert (faults.counts, faults.at_work, client.killed) == ({KILL_AT_WORK: 1}, 1, True)


def test_a_tree_is_killed_with_all_that_it_started(client: Client) -> None:
    assert client.process is not None
    ((below, _),) = descendants(client.process.pid)
    seen = [0]
    faults = ArchiveNemesis({TREE_KILL: 1}, 0.0, 1, [client], None, seen=lambda _pid: seen[0])
    faults.tick()
    seen[0] += 1

    until(lambda: ticked(faults))

    assert client.process.wait() == -9
    # Whose parent is dead is nobody's child, and gone at once.
    until(lambda: not running(below))


def running(pid: int) -> bool:
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(listed.stdout.strip()) and not listed.stdout.startswith("Z")


def test_what_was_wanted_after_the_end_did_not_happen(client: Client) -> None:
    faults = ArchiveNemesis(
        {KILL_AT_WORK: 1}, 0.0, 1, [client], None, seen=lambda _pid: 0, over=lambda: True
    )

    faults.tick()

    assert (faults.finished, faults.counts, client.alive) == (True, {KILL_AT_WORK: 0}, True)
