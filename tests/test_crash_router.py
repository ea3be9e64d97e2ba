"""Routers that are killed at any moment: each task ends in exactly one queue."""

from __future__ import annotations

import pathlib
import random
import signal
import subprocess
import threading
from collections import Counter
from typing import Any

import pytest

import agentbus
from agentbus.core.keys import Keys
from tests.servers import Shell, ask, program

AGENTS = tuple(f"a{n}" for n in range(20))
ROOM = "queues: {'*': {bound: 50000}}\n"


@pytest.mark.parametrize(
    ("tasks", "kills"), [(2_000, 8), pytest.param(10_000, 50, marks=pytest.mark.slow)]
)
def test_each_task_ends_in_one_queue_however_often_routers_are_killed(
    real_shell: Shell, real_url: str, project: str, tasks: int, kills: int
) -> None:
    shell, chance = real_shell, random.Random(7)
    (shell.home / ".agentbus.yaml").write_text(ROOM)
    rules = shell.home / "team.yaml"
    rules.write_text(f"agents: [{', '.join(AGENTS)}]\ndefault: [{', '.join(AGENTS)}]\n")
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        killed = _killed_while_it_routes(bus, shell, rules, tasks, kills, chance)
        # What the dead held is taken over.
        shell.ok("route", str(rules), "--drain", "--visibility", "0.2")
        reached = Counter(_ids(bus, project))
        known = {task for task, _ in bus.queue("incoming").peek(100_000)}

    assert killed == kills
    assert len(known) == tasks
    assert set(reached) == known
    assert set(reached.values()) == {1}


def _killed_while_it_routes(
    bus: agentbus.Bus,
    shell: Shell,
    rules: pathlib.Path,
    tasks: int,
    kills: int,
    chance: random.Random,
) -> int:
    """Publish tasks to three routers, killing one that holds some of each lot; returns how many."""
    incoming, pause, killed = bus.queue("incoming", bound=tasks), threading.Event(), 0

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [program(), "route", str(rules), "--visibility", "1"],
            env=shell.environment,
            cwd=shell.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    # From then on the group is there.
    shell.ok("route", str(rules), "--drain")
    routers = [start() for _ in range(3)]
    try:
        for start_at in range(0, tasks, tasks // kills):
            # The newest may be starting still, or not yet; the oldest is at work.
            pause.wait(0.1 + chance.random() * 0.3)
            end = min(tasks, start_at + tasks // kills)
            incoming.publish_many({"task": f"t{n}", "n": n} for n in range(start_at, end))
            victim = _holder(bus, routers) or routers[chance.randrange(3)]
            routers.remove(victim)
            assert victim.poll() is None
            victim.kill()
            victim.wait()
            killed += 1
            routers.append(start())
    finally:
        for each in routers:
            each.kill()
            each.wait()
    return killed


def _holder(
    bus: agentbus.Bus, routers: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes] | None:
    """Return a router that was stopped while it holds tasks, None if none is met."""
    for _ in range(500):
        for router in routers:
            if router.pid in _holders(bus):
                router.send_signal(signal.SIGSTOP)
                # The first reply comes after what the router had sent before it was stopped.
                if _holders(bus) and router.pid in _holders(bus):
                    return router
                router.send_signal(signal.SIGCONT)
    return None


def _holders(bus: agentbus.Bus) -> set[int]:
    """Return the processes of the routers that hold tasks."""
    stream = Keys(bus.scope.keys.project).queue("incoming")
    pending = ask(bus, "XPENDING", stream, "router")[3] or ()
    return {int(name.split(b":")[-2]) for name, _ in pending if name.count(b":") >= 2}


def _ids(bus: agentbus.Bus, project: str) -> list[str]:
    """Return the ids of all tasks that lie in agents' queues, as their publisher knows them."""
    found = []
    for agent in AGENTS:
        entries: Any = ask(bus, "XRANGE", Keys(project).queue(f"agent.{agent}"), "-", "+")
        for _, flat in entries:
            named = {flat[n]: flat[n + 1] for n in range(0, len(flat), 2)}
            found.append(named[b"id"].decode())
    return found
