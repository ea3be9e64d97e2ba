"""Holds exclude each other among processes that have no names: one session, and so one agent."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import agentbus
from tests.servers import Shell
from tests.tiers import nightly

# Only one process at a time can create the file: the second one is an overlap.
_ROUNDS = """
import os, sys, time
import agentbus

place, rounds = sys.argv[1], int(sys.argv[2])
overlaps = 0
with agentbus.connect(deadline=60) as bus:
    for number in range(rounds):
        with bus.hold("deploy", ttl=60, wait=600):
            try:
                os.close(os.open(place, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                overlaps += 1
            time.sleep(0.0005)
            os.unlink(place)
print(bus.agent, overlaps)
"""


@pytest.mark.parametrize(("processes", "rounds"), [(4, 5), nightly(50, 200)])
@pytest.mark.timeout(1800)
def test_the_holds_of_nameless_processes_never_overlap(
    real_shell: Shell, real_url: str, project: str, processes: int, rounds: int
) -> None:
    environment = {k: v for k, v in real_shell.environment.items() if k != "AGENTBUS_AGENT"}
    place = pathlib.Path(real_shell.home) / "inside"
    command = [sys.executable, "-c", _ROUNDS, str(place), str(rounds)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]

    said = [process.communicate()[0].split() for process in running]

    assert {process.returncode for process in running} == {0}
    assert len({agent for agent, _ in said}) == 1, "they have one name, which they did not choose"
    assert sum(int(overlaps) for _, overlaps in said) == 0
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        (flag,) = bus.flags()
        assert flag.state == "satisfied"
