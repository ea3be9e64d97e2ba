"""Typed tasks against untyped ones, in turns, in one run.

A payload has five fields, one of them a list of three objects. An untyped task is a dict of the same data
that its publisher has; `by hand` means that it is made of a dataclass by `asdict`, and that the handler
makes the dataclass again, both without checks. By hand, a single publish has a field of the envelope, as
that of a typed task has. The server keeps no append-only file, for all alike.

    python -m scripts.benchmarks.typed [--tasks N] [--rounds N]
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import agentbus
from scripts.benchmarks._figures import Figure, run
from scripts.benchmarks.queue import Stopwatch, few
from tests.servers import Server

SIZES = {"quick": {"tasks": 1000, "rounds": 1}, "page": {}}
_BOUND = 100_000_000
_PAIRS = (
    ("publish, typed", "publish, by hand", ">= 0.8"),
    ("publish, typed", "publish", ""),
    ("publish_many, typed", "publish_many, by hand", ">= 0.8"),
    ("publish_many, typed", "publish_many", ""),
    ("worker, typed", "worker, by hand", ">= 0.8"),
    ("worker, typed", "worker", ""),
)


@dataclasses.dataclass
class Line:
    """A line of an order."""

    item: str
    count: int


@dataclasses.dataclass
class Order:
    """An order."""

    number: int
    customer: str
    address: str
    paid: bool
    lines: list[Line]


def order(number: int) -> Order:
    """Return the order with a number."""
    lines = [Line("cup", 1), Line("saucer", 2), Line("spoon", number % 7)]
    return Order(number, "ada", "1 Engine Street, London", True, lines)


def typed(given: argparse.Namespace) -> Iterator[Figure]:
    """A typed publisher checks each payload, and a typed worker checks it again and makes the dataclass."""
    clock, tasks = Stopwatch(), agentbus.Tasks()
    count, single = given.tasks, few(given.tasks)
    orders = [order(number) for number in range(count)]
    plain = [dataclasses.asdict(one) for one in orders]

    @tasks.task(queue="typed")
    def take(order: Order) -> None: ...

    def by_hand(delivery: Any) -> None:
        found = delivery.payload
        Order(**{**found, "lines": [Line(**line) for line in found["lines"]]})

    def untouched(delivery: Any) -> None: ...

    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder), "--appendonly", "no") as server,
        agentbus.connect(server.url, project="bench", agent="bench") as bus,
    ):
        queue = bus.queue("plain", bound=_BOUND)
        for _ in range(given.rounds):
            clock("publish", single, lambda: [queue.publish(one) for one in plain[:single]])
            clock(
                "publish, by hand",
                single,
                lambda: [
                    queue.publish(dataclasses.asdict(one), tenant="t") for one in orders[:single]
                ],
            )
            clock(
                "publish, typed",
                single,
                lambda: [take.publish(bus, one) for one in orders[:single]],
            )
            server.ask("FLUSHALL")
            clock("publish_many", count, lambda: queue.publish_many(plain))
            clock("worker", count, bus.subscribe("plain", untouched, drain=True).run)
            clock(
                "publish_many, by hand",
                count,
                lambda: queue.publish_many(dataclasses.asdict(one) for one in orders),
            )
            clock("worker, by hand", count, bus.subscribe("plain", by_hand, drain=True).run)
            clock(
                "publish_many, typed",
                count,
                lambda: take.publish_many(bus, map(take.item, orders)),
            )
            clock("worker, typed", count, tasks.worker(bus, drain=True).run)
    clock.show(_PAIRS, f"tasks a second, {given.rounds} rounds of {count:,}")
    yield Figure(
        name="typed",
        source="typed.typed",
        title="Typed tasks",
        measured=f"median of {given.rounds} rounds of {count:,}",
        unit="tasks/s",
        rows=clock.rows(_PAIRS),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    # Below the bound of a queue, since typed tasks are published to it as it is.
    parser.add_argument("--tasks", type=int, default=9000)
    parser.add_argument("--rounds", type=int, default=5)
    run(typed, parser, SIZES)
