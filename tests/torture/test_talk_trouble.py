"""An agent sleeps until the others have said more than the channel holds, and is then told of a gap."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.torture.history import INVOKE, OK, HistoryEntry, Scribe
from tests.torture.mode import Trial
from tests.torture.nemesis import KILL, Client
from tests.torture.talk.workload import OVERTAKE, Talk, TalkPlan

BOUND = 350


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    """Three processes that wait for their end."""
    found = [Client(name, []) for name in ("ada", "bob", "cyd")]
    for one in found:
        one.begin(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    yield found
    for one in found:
        assert one.process is not None
        one.process.kill()
        one.process.communicate()


def talk(place: pathlib.Path, clients: list[Client], **wanted: int) -> Talk:
    """Return a talk of these three, who are to suffer this."""
    found = Talk(Trial(7, 1.0, place, url="redis://nowhere"), None)
    found.plan = TalkPlan(3, 1000, BOUND, 0.0, wanted)
    found.clients.extend(clients)
    found.new_nemesis(wanted, 0.0).log = Scribe(place / "faults")
    return found


def speak(workload: Talk, who: str = "ada") -> None:
    for phase in (INVOKE, OK):
        of = {"n": 1, "t": "x", "o": None, "i": "1-1"}
        workload.saw(HistoryEntry(0, who, "speak", phase, of))


def test_who_is_overtaken_wakes_when_the_channel_was_trimmed_behind_it(
    tmp_path: pathlib.Path, clients: list[Client]
) -> None:
    # given one that sleeps
    workload = talk(tmp_path, clients, overtake=1)
    workload.nemesis.tick()
    (asleep,) = [one for one in clients if one.frozen]

    # when the others say more than the channel holds
    for _ in range(BOUND):
        speak(workload)
    workload.nemesis.tick()
    assert asleep.frozen
    for _ in range(BOUND):
        speak(workload)
    workload.nemesis.tick()

    # then it wakes, and it counts when it was told what it missed
    assert (asleep.frozen, workload.nemesis.finished, workload.nemesis.counts[OVERTAKE]) == (
        False,
        False,
        0,
    )
    workload.saw(HistoryEntry(0, asleep.name, "gap", OK, {"r": None, "m": 300}))
    workload.nemesis.tick()
    workload.nemesis.tick()
    assert (workload.nemesis.finished, workload.nemesis.counts[OVERTAKE]) == (True, 1)


def test_there_is_enough_left_to_say_for_those_that_are_yet_to_be_overtaken(
    tmp_path: pathlib.Path, clients: list[Client]
) -> None:
    workload = talk(tmp_path, clients, overtake=2)
    before = workload.kept_back

    workload.nemesis.tick()

    # Each of the other two says its part of what the channel holds.
    assert before == 2 * workload.kept_back > 2 * BOUND / 2
    assert workload.kept_back > 0


def test_nobody_sleeps_on_at_the_end(tmp_path: pathlib.Path, clients: list[Client]) -> None:
    workload = talk(tmp_path, clients, overtake=1)
    workload.nemesis.tick()

    workload.nemesis.end()

    assert [one.frozen for one in clients] == [False] * 3


def test_what_was_done_is_written_down(tmp_path: pathlib.Path, clients: list[Client]) -> None:
    workload = talk(tmp_path, clients, kill=2)
    workload.nemesis.tick()
    workload.nemesis.tick()

    lines = (tmp_path / "faults").read_text().splitlines()

    assert [f'"{KILL}"' in line for line in lines] == [True] * 2
