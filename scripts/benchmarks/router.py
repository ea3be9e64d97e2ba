"""A router that moves tasks, against a worker that only takes and acknowledges them, in one run.

    python -m scripts.benchmarks.router [--tasks N] [--rounds N]

Payloads have 200 bytes and a work type. The server keeps no append-only file, for all alike. Both run in
this process, in turns; the ratio is the median of the rounds' ratios. Each rule names one work type and
one of 100 agents; tasks are spread over all work types.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import agentbus
from agentbus.core.keys import Keys
from agentbus.routing import Router, parse
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server, ask

_BOUND = 100_000_000
_AGENTS = 100
PROJECT = "bench"
SIZES = {"quick": {"tasks": 500, "rounds": 1}, "page": {"tasks": 50_000, "rounds": 5}}


def rules(number: int) -> str:
    """Return a file of so many rules."""
    agents = ", ".join(f"a{n}" for n in range(_AGENTS))
    lines = "".join(f"- {{work_type: t{n}, to: a{n % _AGENTS}}}\n" for n in range(number))
    return f"agents: [{agents}]\nrules:\n{lines}"


def fill(bus: agentbus.Bus, tasks: int, kinds: int) -> None:
    """Publish tasks into an empty project."""
    for key in bus.scope.keys.project, *(f"a{n}" for n in range(_AGENTS)):
        queue = "incoming" if key == PROJECT else f"agent.{key}"
        ask(bus, "DEL", Keys(PROJECT).queue(queue))
    text = "x" * 160
    bus.queue("incoming", bound=_BOUND).publish_many(
        {"type": f"t{n % kinds}", "n": n, "task": text} for n in range(tasks)
    )


def routed(bus: agentbus.Bus, tasks: int, number: int) -> float:
    """Return the tasks a second of a router with so many rules."""
    fill(bus, tasks, number)
    router = Router(bus, parse(rules(number), "bench.yaml"), drain=True)
    router._moving._bound_of = lambda _queue: _BOUND
    began = time.perf_counter()
    router.run()
    took = time.perf_counter() - began
    assert router.counts["moved"] == tasks, router.counts
    return tasks / took


def consumed(bus: agentbus.Bus, tasks: int) -> float:
    """Return the tasks a second of a worker with a trivial handler."""
    fill(bus, tasks, 10)
    seen: list[Any] = []
    worker = bus.subscribe("incoming", lambda task: seen.append(task.payload), drain=True)
    began = time.perf_counter()
    worker.run()
    took = time.perf_counter() - began
    assert len(seen) == tasks
    return tasks / took


def routing(given: argparse.Namespace) -> Iterator[Figure]:
    """A router reads a task, decides, and moves it to its agent's queue in one atomic step.

    The plain worker takes the same tasks, calls a handler that does nothing, and acknowledges them. It
    does not write tasks.
    """
    sizes = (10, 100, 1_000, 10_000)
    plain: list[float] = []
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(pathlib.Path(folder) / "valkey", "--appendonly", "no") as server,
        agentbus.connect(server.url, project=PROJECT, agent="bench") as bus,
    ):
        for round_ in range(given.rounds + 1):
            found = {size: routed(bus, given.tasks, size) for size in sizes}
            base = consumed(bus, given.tasks)
            if round_:
                plain.append(base)
                for size, rate in found.items():
                    rates[size].append(rate)
    first = percentile(rates[sizes[0]], 50)
    table(
        f"{given.tasks} tasks to {_AGENTS} agents; a plain worker: {percentile(plain, 50):,.0f} tasks/s",
        ("rules", "tasks/s", "of the plain worker", "of 10 rules"),
        [
            (
                f"{size:,}",
                f"{percentile(found, 50):,.0f}",
                f"{percentile([a / b for a, b in zip(found, plain, strict=True)], 50):.2f}",
                f"{percentile(found, 50) / first:.2f}",
            )
            for size, found in rates.items()
        ],
    )

    yield Figure(
        name="router",
        source="router.routing",
        title="Tasks routed, by the number of rules",
        measured=f"{given.tasks:,} tasks to {_AGENTS} agents, median of {given.rounds} rounds",
        unit="tasks/s",
        rows=(
            Row("a plain worker", Spread.of(plain), "baseline"),
            *(
                Row(
                    f"{size:,} rules",
                    Spread.of(found),
                    ratio=percentile([a / b for a, b in zip(found, plain, strict=True)], 50),
                    against="a plain worker",
                )
                for size, found in rates.items()
            ),
        ),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    run(routing, parser, SIZES)


if __name__ == "__main__":
    main()
