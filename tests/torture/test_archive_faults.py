"""Archivers are killed when they have done something, alone or with what they started."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from agentbus.core.keys import Keys
from tests.servers import Server
from tests.torture.archive.checks import ArchivedRow
from tests.torture.archive.command import RAN
from tests.torture.archive.controls import STREAMS
from tests.torture.archive.failover import add
from tests.torture.archive.site import ARCHIVER, REPLAY_KILL, REPLAYER, TREE_KILL, descendants
from tests.torture.archive.workload import ArchiveRun
from tests.torture.history import OK, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import Client, Nemesis

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


@pytest.fixture
def archive(tmp_path: pathlib.Path, client: Client) -> ArchiveRun:
    found = ArchiveRun(Trial(1, 1.0, tmp_path, url="redis://nowhere"), None)
    found.clients.append(client)
    return found


def ticked(faults: Nemesis) -> bool:
    faults.tick()
    return faults.finished


def test_one_is_killed_only_after_it_has_done_something(
    archive: ArchiveRun, client: Client
) -> None:
    seen = [3]
    archive.seen = lambda: seen[0]
    client.name = REPLAYER
    faults = archive.new_nemesis({REPLAY_KILL: 1}, 0.0)
    for _ in range(3):
        faults.tick()
    assert (faults.done, client.alive) == (0, True)

    seen[0] += 1
    until(lambda: ticked(faults))

    assert client.process is not None
    assert client.process.wait() == -9
    assert (faults.counts, archive.at_work, client.killed) == ({REPLAY_KILL: 1}, 1, True)


def test_a_tree_is_killed_with_all_that_it_started(archive: ArchiveRun, client: Client) -> None:
    assert client.process is not None
    ((below, _),) = descendants(client.process.pid)
    seen = [0]
    archive.seen = lambda: seen[0]
    faults = archive.new_nemesis({TREE_KILL: 1}, 0.0)
    faults.tick()
    seen[0] += 1

    until(lambda: ticked(faults))

    assert client.process.wait() == -9
    # Whose parent is dead is nobody's child, and gone at once.
    until(lambda: not running(below))


def test_processes_are_listed_with_their_whole_lines_on_a_narrow_terminal(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.process is not None
    monkeypatch.setenv("COLUMNS", "30")

    ((_, words),) = descendants(client.process.pid)

    assert words.endswith("-c input()")


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_was_wanted_after_the_end_did_not_happen(archive: ArchiveRun, client: Client) -> None:
    faults = archive.new_nemesis({REPLAY_KILL: 1}, 0.0)
    archive.saw(HistoryEntry(1, REPLAYER, RAN, OK, {"line": ["replay"], "code": 0}))
    archive.pace()

    faults.tick()

    assert (faults.finished, faults.counts, client.alive) == (True, {REPLAY_KILL: 0}, True)


def test_what_comes_after_a_lost_end_gets_none_of_its_ids(valkey: Server, project: str) -> None:
    # The clock was set back since, as far as the ids say.
    known = [ArchivedRow((STREAMS[0], "9000000000000-7"), "{}", None)]
    for stream in STREAMS:
        valkey.ask("XADD", Keys(project).stream(stream), "8000000000000-1", "message", "hi")

    add(valkey.url, project, 2, known)

    added = [
        [
            entry[0].decode()
            for entry in valkey.ask("XRANGE", Keys(project).stream(stream), "-", "+")
        ]
        for stream in STREAMS
    ]
    assert added[0][1:] == ["9000000000001-0", "9000000000001-1"]
    assert added[1][1:] == added[2][1:] == ["8000000000000-2", "8000000000000-3"]
