"""Whether a task costs more where many are queued, or where many queues are known.

The quickest round counts here, since it was disturbed the least: the question is how much work a task is,
not how busy the machine was. The time includes the shutdown of the worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import agentbus
from tests.bench._figures import Figure, Row, Spread, table
from tests.bench.queue_raw import payload
from tests.servers import Server

_SAMPLE = 20_000
_BOUND = 100_000_000
_WAYS = ("publish_many", "worker")
_GROUPS = ("tasks in the queue", "queues in the project")


def grown(server: Server, depths: list[int], others: list[int], rounds: int) -> Iterator[Figure]:
    """A sample of 20,000 tasks is published and consumed, with many before it, or beside many queues."""
    deep = [(f"{depth:,} queued", depth, 0) for depth in depths]
    many = [(f"{number:,} other queues", 10_000, number) for number in others]
    found = {name: _times(server, depth, number, rounds) for name, depth, number in (*deep, *many)}
    table(
        f"microseconds a task, quickest of {rounds}",
        ["", *_WAYS],
        [[name, *(f"{min(each):.2f}" for each in times)] for name, times in found.items()],
    )
    for number, way in enumerate(_WAYS):
        rows = []
        for names in ([name for name, _, _ in deep], [name for name, _, _ in many]):
            base = min(found[names[0]][number])
            for name in names:
                spread = Spread.quickest(found[name][number])
                if name == names[0]:
                    rows.append(Row(name, spread, "baseline", group=_GROUPS[len(rows) > 1]))
                else:
                    ratio = spread.middle / base
                    rows.append(
                        Row(name, spread, ratio=ratio, against=names[0], group=rows[-1].group)
                    )
        yield Figure(
            name=f"queue-growth-{way.replace('_', '-')}",
            source="queue_growth.grown",
            title=f"Time a task in deep queues and beside many: {way}",
            measured=f"quickest of {rounds} rounds of {_SAMPLE:,} tasks",
            unit="µs",
            better="less",
            rows=tuple(rows),
        )


def _times(server: Server, depth: int, others: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the microseconds a task that each round took: to publish, to consume."""
    server.ask("FLUSHALL")
    published, consumed = [], []
    with agentbus.connect(server.url, project="bench", agent="a") as bus:
        for number in range(others):
            bus.queue(f"other-{number}").publish(payload(0))
        queue = bus.queue("deep", bound=_BOUND)
        queue.publish_many(payload(i) for i in range(depth))
        # The first worker makes the group, and warms up.
        bus.subscribe("deep", _nothing, count=1000).run()
        queue.publish_many(payload(i) for i in range(1000))
        for _ in range(rounds):
            began = time.perf_counter()
            queue.publish_many(payload(i) for i in range(_SAMPLE))
            published.append((time.perf_counter() - began) / _SAMPLE * 1e6)
            began = time.perf_counter()
            bus.subscribe("deep", _nothing, count=_SAMPLE).run()
            consumed.append((time.perf_counter() - began) / _SAMPLE * 1e6)
    return published, consumed


def _nothing(_delivery: object) -> None:
    pass
