"""Workers are frozen until another has their task, killed at work, and spared while they are watched."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.mode import Trial
from tests.torture.nemesis import FREEZE, KILL, Client
from tests.torture.work.plan import PUBLISHER_KILL
from tests.torture.work.tasks import ACK, LIFE, RUN
from tests.torture.work.workload import QueueWork


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    """Two workers and a publisher, that wait for their end."""
    found = [Client(name, []) for name in ("a", "b", "publisher")]
    for one in found:
        one.begin(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    yield found
    for one in found:
        assert one.process is not None
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def make(clients: list[Client], tmp_path: pathlib.Path) -> Callable[..., QueueWork]:
    def made(wanted: dict[str, int], **changes: Any) -> QueueWork:
        found = QueueWork(Trial(7, 1.0, tmp_path, url="redis://nowhere"), None)
        found.plan = found.plan._replace(**changes)
        found.clients += clients
        found.new_nemesis(wanted, 0.0)
        for one in clients:
            found.saw(HistoryEntry(0, one.name, LIFE, INVOKE, {}))
        return found

    return made


def did(who: str, op: str, phase: str, task: int, attempt: int = 1) -> HistoryEntry:
    return HistoryEntry(1, who, op, phase, {"i": task, "attempt": attempt, "id": "x"})


@pytest.mark.parametrize(("answer", "refused"), [(OK, 0), (FAIL, 1)])
def test_a_freeze_counts_when_the_frozen_was_told_after_another_had_its_task(
    make: Callable[..., QueueWork],
    clients: list[Client],
    tmp_path: pathlib.Path,
    answer: str,
    refused: int,
) -> None:
    work = make({FREEZE: 1})
    work.saw(did("a", RUN, INVOKE, 3))
    work.nemesis.tick()
    work.nemesis.tick()
    # it is frozen, and its task is kept in the next one's hands
    assert (clients[0].frozen, (tmp_path / "holds/3").exists(), work.nemesis.finished) == (
        True,
        True,
        False,
    )

    work.saw(did("b", RUN, INVOKE, 3, 2))
    work.nemesis.tick()
    assert work.nemesis.victims() == [clients[2]]
    work.saw(did("a", RUN, OK, 3))
    work.saw(did("a", ACK, answer, 3))
    work.nemesis.tick()
    work.nemesis.tick()

    assert (work.nemesis.counts, work.nemesis.finished, work.refused) == (
        {FREEZE: 1},
        True,
        refused,
    )
    assert (clients[0].frozen, (tmp_path / "holds/3").exists()) == (False, False)


@pytest.mark.parametrize(
    "what",
    [
        [did("a", RUN, OK, 3)],
        [did("b", RUN, INVOKE, 3, 2), did("a", ACK, UNKNOWN, 3)],
    ],
    ids=["it had left its task", "it was never told"],
)
def test_a_freeze_of_which_nothing_is_learned_is_made_again(
    make: Callable[..., QueueWork], tmp_path: pathlib.Path, what: list[HistoryEntry]
) -> None:
    work = make({FREEZE: 1})
    work.saw(did("a", RUN, INVOKE, 3))
    work.nemesis.tick()
    work.nemesis.tick()

    work.saw(what[0])
    work.nemesis.tick()
    for entry in what[1:]:
        work.saw(entry)
        work.nemesis.tick()

    assert (work.nemesis.done, work.nemesis.finished, (tmp_path / "holds/3").exists()) == (
        0,
        False,
        False,
    )


def test_kills_only_at_work_wait_until_somebody_works(
    make: Callable[..., QueueWork], clients: list[Client]
) -> None:
    work = make({KILL: 1}, late_workers=True)
    work.nemesis.tick()
    assert (work.nemesis.done, work.idle) == (0, 1)

    # what another process in its role did is not its work
    before = clients[0].process
    work.saw(did("a", RUN, INVOKE, 3))
    clients[0].process = clients[1].process
    work.nemesis.tick()
    assert (work.nemesis.done, work.idle) == (0, 2)

    clients[0].process = before
    work.nemesis.tick()
    assert (work.nemesis.done, work.at_work, clients[0].killed) == (1, 1, True)


def test_the_publisher_is_killed_apart_from_the_workers(
    make: Callable[..., QueueWork], clients: list[Client]
) -> None:
    make({PUBLISHER_KILL: 1}).nemesis.tick()
    assert [one.killed for one in clients] == [False, False, True]
