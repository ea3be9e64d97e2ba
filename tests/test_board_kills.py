"""Agents that are killed while they work on a board: no task is lost, done twice, or begun too early."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys

import pytest

import agentbus
from tests.tiers import nightly

AGENT = """
import os, sys, agentbus
url, project, agent, log = *sys.argv[1:4], int(sys.argv[4])
with agentbus.connect(url, project=project, agent=agent) as bus:
    while True:
        try:
            task = bus.take("todo", visibility=2, wait=60)
        except agentbus.TimedOut:
            continue
        early = [other for other in task.after if bus.task(other).state != "done"]
        os.write(log, f"{'early' if early else 'begun'} {task.id}\\n".encode())
        try:
            settled = bus.settle(task.id, task.token, result=agent)
        except agentbus.StaleToken:
            continue
        if not settled.repeated:
            os.write(log, f"done {task.id}\\n".encode())
"""


@pytest.mark.parametrize(
    ("agents", "tasks", "kills"), [(3, 30, 2), nightly(8, 200, 25, id="8 agents, 200 tasks")]
)
def test_killed_agents_lose_no_task_do_none_twice_and_begin_none_too_early(
    real_url: str, project: str, agents: int, tasks: int, kills: int
) -> None:
    told, log = os.pipe()
    lines: list[str] = []
    choice = random.Random(7)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        name = f"agent-{len(started)}"
        words = [sys.executable, "-c", AGENT, real_url, project, name, str(log)]
        started.append(subprocess.Popen(words, pass_fds=[log]))

    with open(told) as journal, agentbus.connect(real_url, project=project, agent="bob") as bus:
        queue, ids = bus.queue("todo"), list[str]()
        for number in range(tasks):
            others = choice.sample(ids[-10:], k=min(len(ids), choice.randrange(3)))
            ids.append(queue.publish(number, after=others or None, priority="normal"))
        last = queue.publish("last", after=ids)
        for _ in range(agents):
            start()
        try:
            for number in range(kills):
                # Kill within the work, as it goes on.
                while sum("begun" in line for line in lines) < (number + 1) * tasks // (kills + 2):
                    lines.append(journal.readline())
                victim = choice.choice([agent for agent in started if agent.poll() is None])
                victim.kill()
                victim.wait()
                start()
            assert queue.result(last, wait=300) is not None
        finally:
            for agent in started:
                agent.kill()
                agent.wait()
        os.close(log)
        lines += journal
        states = collections.Counter(bus.task(task_id).state for task_id in [*ids, last])

    assert states == {"done": tasks + 1}
    assert [line for line in lines if line.startswith("early")] == []
    done = [line for line in lines if line.startswith("done")]
    assert len(done) == len(set(done))
