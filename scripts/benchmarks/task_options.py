"""What options of a task cost: tasks with an option against tasks without one, in turns, in one run.

Each handler does nothing but what its row says. The server keeps no append-only file.

    python -m scripts.benchmarks.task_options [--tasks N] [--rounds N]
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import agentbus
from scripts.benchmarks._figures import Figure, run
from scripts.benchmarks.queue import Stopwatch
from tests.servers import Server

SIZES = {"quick": {"tasks": 1000, "rounds": 1}, "page": {}}
_BOUND = 100_000_000
_OPTIONS = {
    "time limit": {"time_limit": 60},
    "expires": {"expires": 3600},
    "attempts": {"attempts": 3},
}
_KEYED = {"key": {}, "unique key": {"unique": "until_done"}}


def _nothing(_delivery: Any) -> None: ...


def _progress(delivery: Any) -> None:
    delivery.progress(0.5, "half of it")


def _result(_delivery: Any) -> int:
    return 1


def _step(delivery: Any) -> None:
    delivery.step("one", int)


def task_options(given: argparse.Namespace) -> Iterator[Figure]:
    """A field of the envelope costs its encoding; a key is stored, and a unique one is freed at the end."""
    clock, count = Stopwatch(), given.tasks
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder), "--appendonly", "no") as server,
        agentbus.connect(server.url, project="bench", agent="bench") as bus,
    ):
        queue = bus.queue("tasks", bound=_BOUND)

        def turn(what: str, items: list[Any], handler: Callable[[Any], Any], **common: Any) -> None:
            clock(f"publish, {what}", len(items), lambda: queue.publish_many(items, **common))
            clock(f"worker, {what}", len(items), bus.subscribe("tasks", handler, drain=True).run)
            server.ask("FLUSHALL")

        for _ in range(given.rounds):
            turn("none", [1] * count, _nothing)
            for what, fields in _OPTIONS.items():
                turn(what, [1] * count, _nothing, **fields)
            for what, fields in _KEYED.items():
                keyed = [agentbus.Task(1, key=f"k{n}", **fields) for n in range(count)]
                turn(what, keyed, _nothing)
            turn("progress", [1] * count, _progress)
            turn("result", [1] * count, _result)
            turn("step", [1] * (count // 4), _step)
    pairs = [
        *((f"publish, {what}", "publish, none", "") for what in (*_OPTIONS, *_KEYED)),
        *(
            (f"worker, {what}", "worker, none", "")
            for what in (*_OPTIONS, *_KEYED, "progress", "result", "step")
        ),
    ]
    clock.show(pairs, f"tasks a second, {given.rounds} rounds of {count:,}")
    yield Figure(
        name="options",
        source="task_options.task_options",
        title="Options of a task",
        measured=f"median of {given.rounds} rounds of {count:,}",
        unit="tasks/s",
        rows=clock.rows(pairs),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=9000)
    parser.add_argument("--rounds", type=int, default=5)
    run(task_options, parser, SIZES)
