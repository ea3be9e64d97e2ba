"""Processes that race for overlapping leases: at no moment do two hold the same path."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import agentbus
from tests.repositories import make_repository
from tests.servers import Shell, all_exit
from tests.tiers import nightly

# A holder creates a file for each path: if it is there already, two hold that path. The patterns overlap
# in different ways, and are spelled in three; what each covers is said beside it.
_ROUNDS = """
import os, random, sys
import agentbus

root, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
covers = {
    "src/a.py": ["a"], "src/b.py": ["b"], "src/?.py": ["a", "b"], "src/*": ["a", "b"], "src/": ["a", "b"],
    "**/a.py": ["a"], "s*c/b*": ["b"], "docs/**": ["d"], "**": ["a", "b", "d"], "docs/d.md": ["d"],
}
any_of = random.Random(seed)
double = held = refused = 0
with agentbus.connect(deadline=60, agent=f"agent{seed}") as bus:
    for number in range(rounds):
        # From where it is, and relative, with a dot, or absolute.
        os.chdir(any_of.choice([root, f"{root}/src"]))
        some = any_of.sample(list(covers), any_of.choice([1, 1, 2]))
        below = "" if os.getcwd() == root else "../"
        paths = [any_of.choice(["./" + below, below, root + "/"]) + one for one in some]
        try:
            lease = bus.lease(*paths, ttl=60, wait=any_of.choice([None, 0.05, 60]))
        except agentbus.LeaseHeld:
            refused += 1
            continue
        held += 1
        files = {name for one in some for name in covers[one]}
        made = []
        for name in files:
            try:
                os.close(os.open(f"{root}/held-{name}", os.O_CREAT | os.O_EXCL))
                made.append(name)
            except FileExistsError:
                double += 1
        for name in made:
            os.unlink(f"{root}/held-{name}")
        lease.drop()
print(held, refused, double)
"""


@pytest.mark.parametrize(("agents", "rounds"), [(8, 15), nightly(8, 1000)])
@pytest.mark.timeout(1800)
def test_racing_agents_never_hold_one_path_twice(
    real_shell: Shell,
    real_url: str,
    project: str,
    tmp_path: pathlib.Path,
    agents: int,
    rounds: int,
) -> None:
    root = tmp_path / "shop"
    make_repository(root)
    (root / "src").mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _ROUNDS, str(root), str(rounds), str(seed)],
            env=real_shell.environment,
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(agents)
    ]

    said = [[int(word) for word in line.split()] for line in all_exit(running, timeout=1500)]

    assert {process.returncode for process in running} == {0}
    held, refused, double = (sum(column) for column in zip(*said, strict=True))
    assert double == 0
    assert held + refused == agents * rounds
    assert held >= agents
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        assert bus.leases() == []
        assert [*bus.overhear()] == []
