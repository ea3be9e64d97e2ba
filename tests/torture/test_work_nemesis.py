"""Workers are frozen until another has their task, killed at work, and spared while they are watched."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from agentbus.torture.nemesis import FREEZE, KILL, Client
from agentbus.torture.work.nemesis import PUBLISHER_KILL, WorkNemesis
from agentbus.torture.work.tasks import ACK, LIFE, RUN


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
def make(clients: list[Client], tmp_path: pathlib.Path) -> Callable[..., WorkNemesis]:
    def made(wanted: dict[str, int], **options: Any) -> WorkNemesis:
        found = WorkNemesis(
            wanted, 0.0, 1, clients, None, holds=tmp_path, poison=frozenset({9}), **options
        )
        for one in clients:
            found.saw(HistoryEntry(0, one.name, LIFE, INVOKE, {}))
        return found

    return made


def did(who: str, op: str, phase: str, task: int, attempt: int = 1) -> HistoryEntry:
    return HistoryEntry(1, who, op, phase, {"i": task, "attempt": attempt, "id": "x"})


@pytest.mark.parametrize(("answer", "refused"), [(OK, 0), (FAIL, 1)])
def test_a_freeze_counts_when_the_frozen_was_told_after_another_had_its_task(
    make: Callable[..., WorkNemesis],
    clients: list[Client],
    tmp_path: pathlib.Path,
    answer: str,
    refused: int,
) -> None:
    faults = make({FREEZE: 1})
    faults.saw(did("a", RUN, INVOKE, 3))
    faults.tick()
    faults.tick()
    # it is frozen, and its task is kept in the next one's hands
    assert (clients[0].frozen, (tmp_path / "3").exists(), faults.finished) == (True, True, False)

    faults.saw(did("b", RUN, INVOKE, 3, 2))
    faults.tick()
    assert faults.victims() == [clients[2]]
    faults.saw(did("a", RUN, OK, 3))
    faults.saw(did("a", ACK, answer, 3))
    faults.tick()

    assert (faults.counts, faults.finished, faults.refused) == ({FREEZE: 1}, True, refused)
    assert (clients[0].frozen, (tmp_path / "3").exists()) == (False, False)


@pytest.mark.parametrize(
    "what",
    [
        [did("a", RUN, OK, 3)],
        [did("b", RUN, INVOKE, 3, 2), did("a", ACK, UNKNOWN, 3)],
    ],
    ids=["it had left its task", "it was never told"],
)
def test_a_freeze_of_which_nothing_is_learned_is_made_again(
    make: Callable[..., WorkNemesis], tmp_path: pathlib.Path, what: list[HistoryEntry]
) -> None:
    faults = make({FREEZE: 1})
    faults.saw(did("a", RUN, INVOKE, 3))
    faults.tick()
    faults.tick()

    faults.saw(what[0])
    faults.tick()
    for entry in what[1:]:
        faults.saw(entry)
        faults.tick()

    assert (faults.done, faults.finished, (tmp_path / "3").exists()) == (0, False, False)


def test_kills_only_at_work_wait_until_somebody_works(
    make: Callable[..., WorkNemesis], clients: list[Client]
) -> None:
    faults = make({KILL: 1}, only_at_work=True)
    faults.tick()
    assert (faults.done, faults.idle) == (0, 1)

    # what another process in its role did is not its work
    before = clients[0].process
    faults.saw(did("a", RUN, INVOKE, 3))
    clients[0].process = clients[1].process
    faults.tick()
    assert (faults.done, faults.idle) == (0, 2)

    clients[0].process = before
    faults.tick()
    assert (faults.done, faults.at_work, clients[0].killed) == (1, 1, True)


def test_the_publisher_is_killed_apart_from_the_workers(
    make: Callable[..., WorkNemesis], clients: list[Client]
) -> None:
    make({PUBLISHER_KILL: 1}).tick()
    assert [one.killed for one in clients] == [False, False, True]


def test_who_takes_poison_had_to_die(
    make: Callable[..., WorkNemesis], clients: list[Client]
) -> None:
    make({}).saw(did("b", RUN, INVOKE, 9))
    assert [one.killed for one in clients] == [False, True, False]
