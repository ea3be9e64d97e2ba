"""Routers that are killed at any moment: each task ends in exactly one queue."""

from __future__ import annotations

import os
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
    (shell.home / "config.yaml").write_text(ROOM)
    shell.environment["AGENTBUS_CONFIG"] = str(shell.home / "config.yaml")
    rules = shell.home / "team.yaml"
    rules.write_text(f"agents: [{', '.join(AGENTS)}]\ndefault: [{', '.join(AGENTS)}]\n")
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        published = _killed_while_it_routes(bus, shell, rules, tasks, kills, chance)
        # What the dead held is taken over.
        shell.ok("route", str(rules), "--drain", "--visibility", "0.2")
        reached = Counter(_ids(bus, project))
        known = {task for task, _ in bus.queue("incoming").peek(100_000)}

        taken_over = int(ask(bus, "HGET", Keys(project).worked("incoming", "router"), "reclaimed"))

    # All of them died with tasks in their hands.
    assert taken_over > 0
    assert len(known) == published
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
    """Publish tasks to three routers, killing one that holds some of each lot.

    Returns how many were published: another lot where all were routed before one was met.
    """
    incoming, pause, published = bus.queue("incoming", bound=50_000), threading.Event(), 0

    def publish() -> None:
        nonlocal published
        lot = range(published, published + tasks // kills)
        incoming.publish_many({"task": f"t{n}", "n": n} for n in lot)
        published += len(lot)

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
        for _ in range(kills):
            # The newest may be starting still, or not yet; the oldest is at work.
            pause.wait(0.1 + chance.random() * 0.3)
            publish()
            while (victim := _frozen(bus, routers)) is None:
                publish()
            routers.remove(victim)
            victim.kill()
            victim.wait()
            routers.append(start())
    finally:
        for each in routers:
            each.kill()
            each.wait()
    return published


def _frozen(
    bus: agentbus.Bus, routers: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes] | None:
    """Freeze a router while it holds tasks, and return it; None if all tasks are routed."""
    while bus.queue("incoming").remaining("router"):
        for router in routers:
            assert router.poll() is None
            router.send_signal(signal.SIGSTOP)
            os.waitpid(router.pid, os.WUNTRACED)
            # By the last answer, the server has read all that was sent before.
            if all(_holds(bus, router.pid) for _ in range(3)):
                return router
            router.send_signal(signal.SIGCONT)
    return None


def _holds(bus: agentbus.Bus, pid: int) -> bool:
    held = ask(bus, "XPENDING", Keys(bus.scope.keys.project).queue("incoming"), "router")[3] or ()
    return str(pid).encode() in [name.split(b":")[-2] for name, _ in held if name.count(b":") >= 2]


def _ids(bus: agentbus.Bus, project: str) -> list[str]:
    """Return the ids of all tasks that lie in agents' queues, as their publisher knows them."""
    found = []
    for agent in AGENTS:
        entries: Any = ask(bus, "XRANGE", Keys(project).queue(f"agent.{agent}"), "-", "+")
        for _, flat in entries:
            named = {flat[n]: flat[n + 1] for n in range(0, len(flat), 2)}
            found.append(named[b"id"].decode())
    return found
