"""Whether a task costs more where many are queued, or where many queues are known."""

from __future__ import annotations

import time

import agentbus
from tests.bench.queue_raw import payload
from tests.servers import Server

_SAMPLE = 20_000
_BOUND = 100_000_000


def measure(server: Server, depths: list[int], others: list[int], rounds: int) -> list[list[str]]:
    """Return a row for each depth and each number of other queues: microseconds a task."""
    deep = [(f"{depth:,} queued", depth, 0) for depth in depths]
    many = [(f"{number:,} other queues", 10_000, number) for number in others]
    return [
        [name, *_times(server, depth, number, rounds)] for name, depth, number in (*deep, *many)
    ]


def _times(server: Server, depth: int, others: int, rounds: int) -> tuple[str, str]:
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
            published.append(time.perf_counter() - began)
            began = time.perf_counter()
            bus.subscribe("deep", _nothing, count=_SAMPLE).run()
            consumed.append(time.perf_counter() - began)
    # The quickest round is the one that was disturbed the least.
    return f"{min(published) / _SAMPLE * 1e6:.2f}", f"{min(consumed) / _SAMPLE * 1e6:.2f}"


def _nothing(_delivery: object) -> None:
    pass
