"""The log of attempts while workers are killed: it has what they noted, and each attempt once."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
from collections import Counter
from typing import Any, NamedTuple

import pytest

import agentbus
from agentbus.core.stream import text
from agentbus.queues.attempt_log import unpacked
from agentbus.queues.policy import Policies
from agentbus.queues.retry import Backoff
from agentbus.store.steps import Command, Pause, one_step
from tests.servers import Server, client

POLICY: dict[object, object] = {"*": {"record_attempts": 1_000_000, "bound": 1_000_000}}
PROJECT = "kills"
_FAILING = 10
_WORKERS = 2
_PAGE = 200


class Row(NamedTuple):
    """An attempt in the log."""

    task: str
    attempt: int
    outcome: str
    process: int
    timed: bool


def work(url: str, notes: str) -> None:
    """Run as a worker until killed, and note the beginning of each attempt before anything else."""
    file = os.open(f"{notes}/{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with opened(url) as bus:

        def handler(delivery: Any) -> None:
            os.write(file, f"begin {delivery.id} {delivery.attempt}\n".encode())
            fails = delivery.payload % _FAILING == 0 and delivery.attempt == 1
            os.write(
                file, f"{'fail' if fails else 'end'} {delivery.id} {delivery.attempt}\n".encode()
            )
            if fails:
                raise ValueError(f"no mailbox {delivery.payload % 100}")

        options: Any = {"visibility": 1.0, "attempts": 1000, "backoff": Backoff(0.0, 0.0)}
        with bus.subscribe("mail", handler, **options) as worker:
            worker.run()


def opened(url: str) -> agentbus.Bus:
    bus = agentbus.connect(url, project=PROJECT, agent="ada")
    bus.runner._policies = Policies(POLICY, "test")
    return bus


def started(url: str, notes: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.test_attempt_log_kills", url, str(notes)]
    # Each failure is a line on stderr.
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def logged(bus: agentbus.Bus) -> list[Row]:
    found: list[Row] = []
    after = "-"
    while True:
        step = Command("XRANGE", bus.scope.keys.attempt_log, after, "+", "COUNT", _PAGE)
        page = bus.runner.run(one_step(step))
        for entry_id, flat in page:
            entry = unpacked(text(entry_id), dict(zip(flat[::2], flat[1::2], strict=True)))
            process = int(entry.worker.split(":")[1])
            rows = zip(entry.tasks, entry.attempts, entry.outcomes, entry.began, strict=True)
            found += [Row(*row[:3], process, row[3] is not None) for row in rows]
        if len(page) < _PAGE:
            return found
        after = f"({text(page[-1][0])}"


def noted(notes: pathlib.Path) -> tuple[set[tuple[str, int, int]], set[tuple[str, int, int]]]:
    """Return the attempts that began, and those that failed: task, number and process."""
    kinds: dict[str, set[tuple[str, int, int]]] = {"begin": set(), "end": set(), "fail": set()}
    for file in notes.iterdir():
        for line in file.read_text().splitlines():
            kind, task, attempt = line.split()
            kinds[kind].add((task, int(attempt), int(file.name)))
    return kinds["begin"], kinds["fail"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("tasks", "kills"), [(5_000, 5), (200_000, 20)])
def test_the_log_has_each_attempt_once_whatever_is_killed(
    tmp_path: pathlib.Path, tasks: int, kills: int
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    chance = random.Random(tasks)
    with Server(tmp_path / "server") as server, opened(server.url) as bus:
        queue = bus.queue("mail")
        ids = queue.publish_many(range(tasks))
        workers = [started(server.url, notes) for _ in range(_WORKERS)]
        killed: set[int] = set()
        stats = bus.scope.keys.stats("mail")
        try:
            while True:
                done = int(bus.runner.run(one_step(Command("HGET", stats, "processed"))) or 0)
                if len(killed) == kills and done >= tasks:
                    break
                # The kills are spread over the work.
                if len(killed) < kills and done >= tasks * len(killed) // (kills + 1):
                    at = chance.randrange(_WORKERS)
                    workers[at].send_signal(signal.SIGKILL)
                    workers[at].wait()
                    killed.add(workers[at].pid)
                    workers[at] = started(server.url, notes)
                bus.runner.run(one_step(Pause(0.05)))
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
        rows = logged(bus)
        with client(server.url) as raw:
            used = raw.memory_usage(bus.scope.keys.attempt_log, samples=0)

    begun, failed = noted(notes)
    assert [pair for pair, n in Counter((r.task, r.attempt) for r in rows).items() if n > 1] == []
    assert Counter(row.outcome for row in rows)["done"] == tasks
    assert {row.task for row in rows if row.outcome == "done"} == set(ids)
    # Each attempt that began has its row, by the worker that made it.
    of_rows = {(row.task, row.attempt, row.process): row for row in rows}
    assert begun - of_rows.keys() == set()
    for key, row in of_rows.items():
        if row.outcome == "cut_off":
            assert (row.process in killed, row.timed) == (True, False)
        else:
            assert key in begun
            assert row.outcome == ("retried" if key in failed else "done")
    outcomes = Counter(row.outcome for row in rows)
    sys.stdout.write(f"{used / tasks:.1f} bytes a task, {dict(outcomes)}\n")
    assert outcomes["cut_off"] > 0
    assert used / tasks <= 120


if __name__ == "__main__":
    work(*sys.argv[1:])
