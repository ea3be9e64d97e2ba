"""What the log of attempts costs a worker, and how much memory an attempt takes.

A worker runs all tasks of a queue, without the log and with it in turns (`record_attempts` in the queue's
policy); the ratio is the median of the rounds' ratios. One handler does nothing, another computes for
100 µs. `MEMORY USAGE` of the whole log, by the number of its attempts, is what an attempt takes.

    python -m scripts.benchmarks.attempts [--tasks N] [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import agentbus
from agentbus.queues.policy import Policies
from agentbus.queues.retry import Backoff
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server, client

SIZES = {"quick": {"tasks": 2000, "rounds": 1}, "page": {"tasks": 100_000, "rounds": 7}}
_BUSY = 100e-6
# How many tasks a round of the slower handler has, of those of the quick one.
_SHARE = 10
_BOUND = 1_000_000
_OF = {logged: {"*": {"record_attempts": _BOUND if logged else 0}} for logged in (False, True)}


def trivial(_delivery: Any) -> None:
    """Do nothing."""


def busy(_delivery: Any) -> None:
    """Compute for 100 µs."""
    until = time.perf_counter() + _BUSY
    while time.perf_counter() < until:
        pass


# Each handler, and how it should come out.
_HANDLERS: dict[str, tuple[Callable[[Any], None], str]] = {
    "nothing": (trivial, ">= 0.85"),
    "100 µs of computing": (busy, ">= 0.95"),
}


def throughput(server: Server, tasks: int, rounds: int) -> Iterator[Figure]:
    """The worker packs one entry for each batch that it acknowledges, and sends both together.

    Each attempt is timed, which costs two looks at the clock; the entry needs no request besides the ack.
    """
    rows: list[Row] = []
    lines = []
    for name, (handler, wanted) in _HANDLERS.items():
        number = tasks if handler is trivial else max(1000, tasks // _SHARE)
        rates: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(rounds):
            for logged in (False, True) if turn % 2 else (True, False):
                rates[logged].append(number / _seconds(server, handler, number, logged=logged))
        pairs = zip(rates[True], rates[False], strict=True)
        ratio = percentile([with_log / without for with_log, without in pairs], 50)
        off, on = Spread.of(rates[False]), Spread.of(rates[True])
        rows.append(Row("without the log", off, "baseline", group=name))
        rows.append(
            Row(
                "with the log",
                on,
                ratio=ratio,
                against="without the log",
                wanted=wanted,
                group=name,
            )
        )
        each = [f"{percentile(rates[logged], 50):,.0f}" for logged in (False, True)]
        lines.append([name, *each, f"{ratio:.3f}", wanted])
    table(
        f"tasks a second, {rounds} rounds of {tasks:,}",
        ["a handler of", "without", "with", "ratio", "wanted"],
        lines,
    )
    yield Figure(
        name="attempts",
        source="attempts.throughput",
        title="The log of attempts",
        measured=f"median of {rounds} rounds of {tasks:,}",
        unit="tasks/s",
        rows=tuple(rows),
    )


def memory(server: Server, tasks: int) -> Iterator[Figure]:
    """A quarter of the tasks fails at its first attempt, and is tried again at once."""
    bus = _bus(server, "memory", logged=True)

    def handler(delivery: Any) -> None:
        if delivery.payload % 4 == 0 and delivery.attempt == 1:
            raise ValueError(f"there is no mailbox {delivery.payload % 100}")

    with bus:
        bus.queue("mail").publish_many(range(tasks))
        with bus.subscribe("mail", handler, drain=True, backoff=Backoff(0.0, 0.0)) as worker:
            worker.run()
        with client(server.url) as raw:
            used = raw.memory_usage(bus.scope.keys.attempt_log, samples=0)
    table(
        "bytes in the log",
        ["", "a task", "wanted"],
        [["a quarter of the tasks fails once", f"{used / tasks:.1f}", "<= 120"]],
    )
    yield Figure(
        name="attempts-memory",
        source="attempts.memory",
        title="Memory of the log of attempts",
        measured=f"{tasks:,} tasks",
        unit="bytes/task",
        better="less",
        rows=(
            Row("a quarter of the tasks fails once", Spread.once(used / tasks), wanted="<= 120"),
        ),
    )


def _bus(server: Server, project: str, *, logged: bool) -> agentbus.Bus:
    bus = agentbus.connect(server.url, project=project, agent="bench")
    bus.runner._policies = Policies({"*": {"bound": _BOUND, **_OF[logged]["*"]}}, "the benchmark")
    return bus


def _seconds(server: Server, handler: Callable[[Any], None], number: int, *, logged: bool) -> float:
    with _bus(server, "throughput", logged=logged) as bus:
        with client(server.url) as raw:
            raw.flushall()
        bus.queue("mail").publish_many([{"to": "x" * 180}] * number)
        gc.collect()
        with bus.subscribe("mail", handler, drain=True) as worker:
            began = time.perf_counter()
            worker.run()
            return time.perf_counter() - began


def measure(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure both on a server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder)) as server,
    ):
        yield from throughput(server, given.tasks, given.rounds)
        yield from memory(server, given.tasks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    run(measure, parser, SIZES)
