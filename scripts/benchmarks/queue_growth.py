"""Whether a task costs more where many are queued, or where many queues are known.

All projects lie on one server and take turns, so that a machine that is busy for a while disturbs them
alike; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, table
from scripts.benchmarks.queue_raw import payload
from tests.servers import Server

_SAMPLE = 20_000
# Done before the time is taken, by which a worker has found its batch size.
_WARM = 5_000
_BOUND = 100_000_000
_WAYS = ("publish_many", "worker")
_GROUPS = ("tasks in the queue", "queues in the project")


def grown(server: Server, depths: list[int], others: list[int], rounds: int) -> Iterator[Figure]:
    """A sample of 20,000 tasks is published and consumed, with many before it, or beside many queues.

    The worker's time is that between two calls of its handler, while it takes the next tasks as the
    previous ones run; its start and its end do not count.
    """
    deep = [(f"{depth:,} queued", depth, 0) for depth in depths]
    many = [(f"{number:,} other queues", depths[0], number) for number in others]
    server.ask("FLUSHALL")
    with ExitStack() as stack:
        sites = {}
        for name, depth, number in (*deep, *many):
            project = f"bench-{len(sites)}"
            bus = stack.enter_context(agentbus.connect(server.url, project=project, agent="a"))
            sites[name] = _Site(bus, depth, number)
        for _ in range(rounds):
            for site in sites.values():
                site.measure()
    table(
        f"microseconds a task, median of {rounds}",
        ["", *_WAYS],
        [
            [name, *(f"{percentile(times, 50):.2f}" for times in site.times)]
            for name, site in sites.items()
        ],
    )
    for number, way in enumerate(_WAYS):
        rows = []
        for group, names in zip(_GROUPS, (deep, many), strict=True):
            base, *rest = (name for name, _, _ in names)
            first = sites[base].times[number]
            rows.append(Row(base, Spread.of(first), "baseline", group=group))
            for name in rest:
                found = sites[name].times[number]
                pairs = zip(found, first, strict=True)
                ratio = percentile([mine / theirs for mine, theirs in pairs], 50)
                rows.append(Row(name, Spread.of(found), ratio=ratio, against=base, group=group))
        yield Figure(
            name=f"queue-growth-{way.replace('_', '-')}",
            source="queue_growth.grown",
            title=f"Time a task in deep queues and beside many: {way}",
            measured=f"median of {rounds} rounds of {_SAMPLE:,} tasks",
            unit="µs",
            better="less",
            rows=tuple(rows),
        )


class _Site:
    """A project with a queue that stays as deep as it is, and the microseconds a task of each round."""

    def __init__(self, bus: agentbus.Bus, depth: int, others: int) -> None:
        self._bus = bus
        self.times: tuple[list[float], list[float]] = ([], [])
        for number in range(others):
            bus.queue(f"other-{number}").publish(payload(0))
        self._queue = bus.queue("deep", bound=_BOUND)
        self._queue.publish_many(payload(i) for i in range(depth))
        # The first worker makes the group.
        self._publish(bus.subscribe("deep", _nothing, count=1000).run())

    def measure(self) -> None:
        """Publish a sample and consume as many."""
        published, consumed = self.times
        published.append(self._publish(_WARM + _SAMPLE))
        moments: list[float] = []
        calls = 0

        def handler(_delivery: object) -> None:
            nonlocal calls
            calls += 1
            if calls in (_WARM, _WARM + _SAMPLE):
                moments.append(time.perf_counter())
                if len(moments) == 2:
                    worker.stop()

        worker = self._bus.subscribe("deep", handler)
        worker.run()
        began, ended = moments
        consumed.append((ended - began) / _SAMPLE * 1e6)
        self._publish(max(0, calls - _WARM - _SAMPLE))

    def _publish(self, number: int) -> float:
        """Publish so many tasks; return the microseconds of each."""
        began = time.perf_counter()
        self._queue.publish_many(payload(i) for i in range(number))
        return (time.perf_counter() - began) / max(number, 1) * 1e6


def _nothing(_delivery: object) -> None:
    pass
