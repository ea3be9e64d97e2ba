"""A worker with two processes against one, and against two processes written by hand, in one run.

    python -m tests.bench.processes [--tasks N] [--rounds N]

A rate is that between 15 % and 95 % of the tasks delivered, so that the start of processes does not count.
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
from collections.abc import Iterator
from typing import Any

import agentbus
from agentbus.core.keys import Keys
from tests.bench import queue_raw
from tests.bench._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server, ask, program

PROJECT = "bench"
_BOUND = 100_000_000
_FROM, _TO = 0.15, 0.95
_CPU = 200e-6
SIZES = {"quick": {"tasks": 2000, "rounds": 1}, "page": {"tasks": 30_000, "rounds": 5}}
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
    name = f"c{os.getpid()}"
    group = {queue_raw.STREAM: ">"}
    while True:
        reply: Any = server.xreadgroup(queue_raw.GROUP, name, group, count=queue_raw.BATCH, block=0)
        entries = reply[0][1]
        for _, fields in entries:
            trivial(queue_raw.orjson.loads(fields[b"payload"]))
        server.xack(queue_raw.STREAM, queue_raw.GROUP, *[entry_id for entry_id, _ in entries])


def rate(bus: agentbus.Bus, key: str, tasks: int) -> float:
    """Return the tasks a second that are delivered to a group between 15 % and 95 % of them."""
    at: list[tuple[int, float]] = []
    while not at or at[-1][0] < tasks * _TO:
        (group,) = ask(bus, "XINFO", "GROUPS", key) or [[]]
        named = dict(zip(group[::2], group[1::2], strict=True))
        if (read := named.get(b"entries-read") or 0) >= tasks * _FROM:
            at.append((read, time.perf_counter()))
        time.sleep(0.002)
    return (at[-1][0] - at[0][0]) / (at[-1][1] - at[0][1])


def worked(bus: agentbus.Bus, handler: str, processes: int, tasks: int) -> float:
    """Return the tasks a second of a worker with so many processes; 0 for two that are started by hand."""
    queue = bus.queue("work", bound=_BOUND)
    ask(bus, "DEL", Keys(PROJECT).queue("work"))
    queue.publish_many(queue_raw.payload(number) for number in range(tasks))
    queue.fetch()[0].retry()
    command = ["work", "work", "--handler", f"tests.bench.processes:{handler}"]
    command += ["--url", bus.settings.url or "", "--project", PROJECT]
    command += ["--processes", str(processes)] if processes else []
    workers = [
        subprocess.Popen([program(), *command], stdout=subprocess.DEVNULL)
        for _ in range(1 if processes else 2)
    ]
    try:
        return rate(bus, Keys(PROJECT).queue("work"), tasks)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


def looped(bus: agentbus.Bus, path: str, tasks: int) -> float:
    """Return the tasks a second of two processes written by hand."""
    server = queue_raw.client(path)
    server.delete(queue_raw.STREAM)
    queue_raw.publish_pipelined(server, tasks)
    queue_raw.group(server)
    code = f"from tests.bench.processes import loop; loop({path!r})"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        return rate(bus, queue_raw.STREAM, tasks)
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
    rates: dict[str, list[float]] = {name: [] for row in _ROWS for name in row[:2]}
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(pathlib.Path(folder) / "valkey", "--appendonly", "no") as server,
        agentbus.connect(server.url, project=PROJECT, agent="bench") as bus,
    ):
        for _ in range(given.rounds):
            rates[busy[1]].append(worked(bus, "busy", 1, given.tasks // 3))
            rates[busy[0]].append(worked(bus, "busy", 2, given.tasks // 3))
            rates[light[1]].append(looped(bus, server.socket, given.tasks * 4))
            rates[light[0]].append(worked(bus, "trivial", 2, given.tasks * 4))
            rates[_ROWS[1][1]].append(worked(bus, "trivial", 0, given.tasks * 4))
    ratios = [
        percentile([a / b for a, b in zip(rates[ours], rates[base], strict=True)], 50)
        for ours, base, _ in _ROWS
    ]
    table(
        f"processes of one worker, {given.rounds} rounds",
        ("what", "tasks/s", "against", "tasks/s", "ratio", "wanted"),
        [
            (
                *(ours, f"{percentile(rates[ours], 50):,.0f}"),
                *(base, f"{percentile(rates[base], 50):,.0f}", f"{ratio:.2f}", wanted),
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    run(processes, parser, SIZES)


if __name__ == "__main__":
    main()
