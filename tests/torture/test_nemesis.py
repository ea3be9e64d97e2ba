"""Faults are done in the order that a seed gives, counted when they happened, and mended in the end."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.torture import nemesis
from tests.torture.nemesis import FREEZE, KILL, SERVER_KILL, Client, Nemesis, Steps
from tests.torture.server import DisposableServer


@pytest.fixture
def client() -> Iterator[Client]:
    """A process that waits for its end."""
    found = Client("one", [])
    found.begin(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    yield found
    assert found.process is not None
    found.process.kill()
    found.process.communicate()


def test_a_fault_counts_when_it_was_done(client: Client) -> None:
    faults = Nemesis({KILL: 1}, 0.0, 1, [client], None)

    faults.tick()

    assert client.process is not None
    assert client.process.wait() == -9
    assert (faults.counts, faults.finished, client.killed) == ({KILL: 1}, True, True)


def test_without_anybody_to_hurt_it_waits_and_asks_for_more_work() -> None:
    faults = Nemesis({KILL: 1}, 0.0, 1, [], None)

    faults.tick()

    assert (faults.counts, faults.hunger, faults.finished) == ({KILL: 0}, 1, False)


def test_what_is_frozen_goes_on_at_the_end(client: Client) -> None:
    faults = Nemesis({FREEZE: 1}, 0.0, 1, [client], None)
    faults.tick()
    assert (client.frozen, faults.finished, faults.victims()) == (True, False, [])

    faults.end()

    assert (client.frozen, faults.finished, faults.victims()) == (False, True, [client])


def test_a_fault_that_takes_time_counts_once_it_has_happened_and_is_mended_in_the_end() -> None:
    steps: list[str] = []

    def fault(*happens: bool) -> Steps:
        steps.append("begun")
        try:
            yield from happens
        finally:
            steps.append("mended")

    tries = [fault(False), fault(False, True, True)]
    faults = Nemesis({KILL: 1}, 0.0, 1, [], None)
    faults.faults[KILL] = lambda: tries.pop(0)
    faults.tick()
    assert (faults.done, faults.finished, steps) == (0, False, ["begun"])

    # it ends without having happened, and is done again
    faults.tick()
    assert (faults.done, faults.hunger, steps[1:]) == (0, 1, ["mended", "begun"])
    faults.tick()
    assert (faults.done, faults.finished) == (1, False)
    faults.end()

    assert (faults.done, faults.finished, steps[3:]) == (1, True, ["mended"])


def test_the_same_seed_gives_the_same_faults() -> None:
    def order(seed: int) -> list[str]:
        done: list[str] = []
        faults = Nemesis(dict.fromkeys(nemesis.OF_CLIENTS, 3), 0.0, seed, [], None)
        for kind in nemesis.OF_CLIENTS:
            faults.faults[kind] = lambda kind=kind: done.append(kind) or True  # type: ignore[misc]
        while not faults.finished:
            faults.tick()
        return done

    assert order(7) == order(7) != order(8)


def test_what_cannot_be_done_is_left_out() -> None:
    assert nemesis.possible({KILL: 2, SERVER_KILL: 3, FREEZE: 0}, None) == {KILL: 2}


def test_to_a_server_one_thing_is_done_at_a_time(tmp_path: pathlib.Path) -> None:
    server = DisposableServer(tmp_path)
    faults = Nemesis({"one": 1, "other": 1}, 0.0, 1, [], server)

    def fault(_server: DisposableServer) -> Steps:
        yield True
        yield True

    for kind in faults.wanted:
        faults.faults[kind] = lambda kind=kind: faults.alone(kind, fault)  # type: ignore[misc]
    faults.tick()
    assert (faults.done, faults.serves) == (1, False)
    faults.tick()
    assert faults.done == 1
    while not faults.finished:
        faults.tick()

    assert (faults.counts, faults.serves) == ({"one": 1, "other": 1}, True)
