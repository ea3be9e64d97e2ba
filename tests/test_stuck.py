"""Tasks that run for much longer than is usual are a finding of the health checks."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

import agentbus
from agentbus.admin.health import stuck, thresholds
from agentbus.admin.health.worker_list import WorkerList
from agentbus.queues.policy import Policies
from agentbus.workers.registry import Registered
from tests.servers import Shell


def worker(bus: agentbus.Bus, seconds: float, task: str = "1-1@mail") -> Registered:
    """Return a live worker that has run a task for some seconds."""
    now = time.time()
    return Registered(
        *("w:1:a", "ada", "mail", "default", "working", True, 0.0, now, now - 9000, 0, 0, 1, 1, 1),
        *("w", 1, "0"),
        began={task: now - seconds},
    )


def findings(
    bus: agentbus.Bus, *workers: Registered, queues: Any = None, health: Any = None
) -> list[Any]:
    levels = thresholds.Thresholds(health or {}, "test")
    policies = Policies(queues or {}, "test")
    listed = WorkerList(workers, {})
    return bus.runner.run(stuck.examine(bus.scope, levels, policies, listed))


def run_quickly(bus: agentbus.Bus, number: int) -> None:
    """Run some tasks, and wait until the worker's metrics are written."""
    bus.queue("mail").publish_many(range(number))
    with bus.subscribe("mail", lambda _: None, drain=True) as running:
        running.run()


def test_a_task_that_runs_ten_times_as_long_as_others_is_stuck(bus: agentbus.Bus) -> None:
    run_quickly(bus, 120)

    (finding,) = findings(bus, worker(bus, 61), worker(bus, 900, "2-2@mail"))

    assert (finding.check, finding.subject, finding.severity) == (
        *("stuck", "mail/default"),
        "warning",
    )
    assert finding.text.startswith(
        "the task '2-2@mail' has run for 15 minutes with 'w:1:a', and 1 other task for too long; 99 %"
    )
    assert "agentbus task show 2-2@mail; then agentbus task cancel 2-2@mail" in finding.remedy


def test_a_minute_is_not_too_long(bus: agentbus.Bus) -> None:
    run_quickly(bus, 120)

    assert findings(bus, worker(bus, 59)) == []


def test_without_a_hundred_runs_nobody_knows_what_is_usual(bus: agentbus.Bus) -> None:
    run_quickly(bus, 50)

    assert findings(bus, worker(bus, 9000)) == []


def test_a_policy_says_what_is_expected(bus: agentbus.Bus) -> None:
    (finding,) = findings(bus, worker(bus, 5), queues={"mail": {"expect": 4}})

    assert (finding.figure, finding.threshold) == (5, 4)
    assert findings(bus, worker(bus, 5), queues={"mail": {"expect": 6}}) == []


@pytest.mark.parametrize("health", [{"stuck": "off"}, {"queues": {"mail": {"stuck": False}}}])
def test_the_check_is_left_out_if_the_config_says_so(bus: agentbus.Bus, health: Any) -> None:
    assert findings(bus, worker(bus, 5), queues={"*": {"expect": 1}}, health=health) == []


def test_health_names_a_task_that_runs_for_too_long(
    real_shell: Shell, real_url: str, project: str
) -> None:
    config = real_shell.home / "config.yaml"
    config.write_text("queues: {mail: {expect: 0.5s}}\n")
    over = threading.Event()
    with agentbus.connect(real_url, project=project, agent="ada") as bus:
        task = bus.queue("mail").publish(1)
        with bus.subscribe("mail", lambda _: over.wait(60)) as running:
            thread = threading.Thread(target=running.run)
            thread.start()
            try:
                until = time.monotonic() + 30
                checks: list[Any] = []
                while not checks and time.monotonic() < until:
                    lines = real_shell.run("health", "--json", "--config", str(config)).stdout
                    told = [json.loads(line) for line in lines.splitlines()]
                    checks = [one for one in told if one.get("check") == "stuck"]
            finally:
                over.set()
                running.stop()
                thread.join()

    (check,) = checks
    assert task in check["text"]
