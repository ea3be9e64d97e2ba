"""A worker with two processes against one, and against two processes written by hand, in one run.

    python -m scripts.benchmarks.processes [--tasks N] [--rounds N]

All processes have done a task before the others are published, in one step, so their start does not count.
A rate is that between 15 % and 95 % of the tasks delivered. Beside it are the microseconds of CPU that the
server and the processes take for a task, which say more on a busy machine.
What is compared runs in turns; the ratio is the median of the rounds' ratios. The server keeps no
append-only file, for all alike.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import agentbus
from agentbus.core.keys import Keys
from scripts.benchmarks import queue_raw
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server, ask, program

PROJECT = "bench"
_BOUND = 100_000_000
_FROM, _TO = 0.15, 0.95
_CPU = 200e-6
# A task, as `publish` and a program by hand write it, but for the agent; and the script that appends many.
_ONE = ["payload", queue_raw.orjson.dumps(queue_raw.payload(0)).decode()]
_FILL = "for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2)) end"
SIZES = {"quick": {"tasks": 2000, "rounds": 1}, "page": {"tasks": 30_000, "rounds": 5}}
# The server answers nobody while it appends the tasks.
_PATIENT = ("--busy-reply-threshold", "600000")
# What runs, how, against what, and how it should come out.
_ROWS = (
    ("two processes, 200 µs of CPU", "one process, 200 µs of CPU", ">= 1.7"),
    ("two processes, a trivial handler", "two workers started by hand", ">= 0.95"),
    ("two processes, a trivial handler", "two raw loops", ">= 0.95"),
)


def busy(_delivery: object) -> None:
    """Take 200 µs of CPU."""
    until = time.thread_time() + _CPU
    while time.thread_time() < until:
        pass


def trivial(_delivery: object) -> None:
    """Do nothing."""


def loop(path: str) -> None:
    """Take and acknowledge tasks as a program written by hand does, until the server is gone."""
    server = queue_raw.client(path)
    name = f"raw:{os.getpid()}:loop"
    group = {queue_raw.STREAM: ">"}
    while True:
        reply: Any = server.xreadgroup(queue_raw.GROUP, name, group, count=queue_raw.BATCH, block=0)
        entries = reply[0][1]
        for _, fields in entries:
            trivial(queue_raw.orjson.loads(fields[b"payload"]))
        server.xack(queue_raw.STREAM, queue_raw.GROUP, *[entry_id for entry_id, _ in entries])


class Pace(NamedTuple):
    """The tasks a second, and the microseconds of CPU for each: of the server, and of the processes."""

    rate: float
    server: float
    processes: float


def cpu(pids: Iterable[int]) -> float:
    """Return the microseconds of CPU that processes have taken, with all their threads."""
    found = (path for pid in pids for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in found) / 1000


def delivered(bus: agentbus.Bus, key: str) -> int:
    """Return how many tasks were delivered to the group."""
    (group,) = ask(bus, "XINFO", "GROUPS", key)
    return int(dict(zip(group[::2], group[1::2], strict=True)).get(b"entries-read") or 0)


def pace(
    bus: agentbus.Bus, server: Server, key: str, number: int, one: list[str], tasks: int
) -> Pace:
    """Publish tasks of one form for `number` processes, and return how fast they do them."""
    workers: dict[int, None] = {}
    while len(workers) < number:
        for _ in range(number):
            ask(bus, "XADD", key, "*", *one)
        groups = ask(bus, "XINFO", "GROUPS", key)
        for consumer in ask(bus, "XINFO", "CONSUMERS", key, groups[0][1]) if groups else ():
            # A worker makes its consumer with its first read: by then it has started.
            name = dict(zip(consumer[::2], consumer[1::2], strict=True))[b"name"]
            workers[int(name.split(b":")[-2])] = None
        time.sleep(0.01)
    before = delivered(bus, key)
    with queue_raw.client(server.socket) as client:
        client.execute_command("EVAL", _FILL, 1, key, tasks, *one)
    at: list[tuple[int, float, float, float]] = []
    while not at or at[-1][0] < before + tasks * _TO:
        if (read := delivered(bus, key)) >= before + tasks * _FROM:
            assert server.process is not None
            at.append((read, time.perf_counter(), cpu([server.process.pid]), cpu(workers)))
        time.sleep(0.002)
    done, took, serving, working = (last - first for first, last in zip(at[0], at[-1], strict=True))
    return Pace(done / took, serving / done, working / done)


def worked(bus: agentbus.Bus, server: Server, handler: str, processes: int, tasks: int) -> Pace:
    """Return the pace of a worker with so many processes; 0 for two that are started by hand."""
    key = Keys(PROJECT).queue("work")
    ask(bus, "DEL", key)
    command = ["work", "work", "--handler", f"scripts.benchmarks.processes:{handler}"]
    command += ["--url", bus.settings.url or "", "--project", PROJECT]
    command += ["--processes", str(processes)] if processes else []
    workers = [
        subprocess.Popen([program(), *command], stdout=subprocess.DEVNULL)
        for _ in range(1 if processes else 2)
    ]
    try:
        return pace(bus, server, key, processes or 2, [*_ONE, "agent_id", "bench"], tasks)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


def looped(bus: agentbus.Bus, server: Server, tasks: int) -> Pace:
    """Return the pace of two processes written by hand."""
    ask(bus, "DEL", queue_raw.STREAM)
    ask(bus, "XGROUP", "CREATE", queue_raw.STREAM, queue_raw.GROUP, "0", "MKSTREAM")
    code = f"from scripts.benchmarks.processes import loop; loop({server.socket!r})"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        return pace(bus, server, queue_raw.STREAM, 2, _ONE, tasks)
    finally:
        for one in loops:
            one.kill()
            one.wait()


def processes(given: argparse.Namespace) -> Iterator[Figure]:
    """Two processes share a queue's tasks, each with its connection and its interpreter.

    With a handler that takes 200 µs of CPU, the processors are the limit; with a trivial one the server and
    the loop around the handler are. The loops by hand take batches of 500 and acknowledge each batch with
    one XACK, without retries, heartbeats or dead letters.
    """
    busy, light = _ROWS[0], _ROWS[2]
    paces: dict[str, list[Pace]] = {name: [] for row in _ROWS for name in row[:2]}
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(pathlib.Path(folder) / "valkey", "--appendonly", "no", *_PATIENT) as server,
        agentbus.connect(server.url, project=PROJECT, agent="bench") as bus,
    ):
        for _ in range(given.rounds):
            paces[busy[1]].append(worked(bus, server, "busy", 1, given.tasks // 3))
            paces[busy[0]].append(worked(bus, server, "busy", 2, given.tasks // 3))
            paces[light[1]].append(looped(bus, server, given.tasks * 4))
            paces[light[0]].append(worked(bus, server, "trivial", 2, given.tasks * 4))
            paces[_ROWS[1][1]].append(worked(bus, server, "trivial", 0, given.tasks * 4))
    rates = {name: [one.rate for one in found] for name, found in paces.items()}
    ratios = [
        percentile([a / b for a, b in zip(rates[ours], rates[base], strict=True)], 50)
        for ours, base, _ in _ROWS
    ]
    table(
        f"processes of one worker, {given.rounds} rounds",
        ("what", "tasks/s", "against", "tasks/s", "server + processes: µs", "ratio", "wanted"),
        [
            (
                *(ours, f"{percentile(rates[ours], 50):,.0f}"),
                *(base, f"{percentile(rates[base], 50):,.0f}"),
                *(_cost(paces[ours], paces[base]), f"{ratio:.2f}", wanted),
            )
            for (ours, base, wanted), ratio in zip(_ROWS, ratios, strict=True)
        ],
    )
    yield Figure(
        name="processes",
        source="processes.processes",
        title="Processes of one worker",
        measured=f"{given.rounds} rounds of {given.tasks // 3:,} and {given.tasks * 4:,} tasks",
        unit="tasks/s",
        rows=tuple(
            row
            for (ours, base, wanted), ratio in zip(_ROWS, ratios, strict=True)
            for row in (
                Row(base, Spread.of(rates[base]), "baseline", group=base),
                Row(ours, Spread.of(rates[ours]), "ours", ratio, base, wanted, group=base),
            )
        ),
    )


def _cost(paces: list[Pace], base: list[Pace]) -> str:
    """Return the CPU of server and processes for a task, each beside that of the baseline."""
    server, workers, others, others_workers = (
        percentile([one[at] for one in some], 50) for some in (paces, base) for at in (1, 2)
    )
    return f"{server:.2f} + {workers:.2f} : {others:.2f} + {others_workers:.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    run(processes, parser, SIZES)


if __name__ == "__main__":
    main()
