"""Queues against hand-written redis-py, in one run.

Payloads have 200 bytes; a trivial handler is called once for each task. The server keeps no
append-only file (`--appendonly no`), for all alike. What is compared runs in turns, and the ratio
is the median of the rounds' ratios, so that a machine that is busy for a while disturbs both sides.
[Why it is fast](why-fast.md#queues) explains the design.

    python -m scripts.benchmarks.queue [throughput] [latency] [memory] [growth] [--tasks N] [--rounds N]
        [--most N]
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import agentbus
from scripts.benchmarks import queue_growth, queue_latency, queue_raw
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server

PARTS = ("throughput", "latency", "memory", "growth")
SIZES = {
    "quick": {"tasks": 1000, "rounds": 1, "samples": 20, "most": 20_000},
    "page": {"rounds": 5},
}
_BOUND = 100_000_000
# What is measured, against what, how it should come out, and in which picture it is shown.
_PAIRS = (
    ("publish_many", "pipelines of 500", ">= 2.0", "batches"),
    ("publish", "XADD one by one", ">= 1.0", "single"),
    ("publish with a key", "SET NX, XADD", ">= 1.0", "single"),
    ("publish with a key", "XADD one by one", "", ""),
    ("worker", "XREADGROUP, one XACK", ">= 0.65", "batches"),
    ("worker, batch=True", "XREADGROUP, one XACK", "", "batches"),
    ("worker, async handler", "worker", ">= 0.8", "batches"),
)
_PICTURES = {"batches": "Tasks in batches", "single": "Tasks one by one"}


class Stopwatch:
    """Collects tasks a second by what was measured."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = defaultdict(list)

    def __call__(self, what: str, count: int, work: Callable[[], object]) -> None:
        """Time one piece of work."""
        gc.collect()
        began = time.perf_counter()
        work()
        self.rates[what].append(count / (time.perf_counter() - began))

    def rate(self, what: str) -> float:
        """Return the median of one measurement."""
        return percentile(self.rates[what], 50)

    def ratio(self, what: str, base: str) -> float:
        """Return the median of the rounds' ratios."""
        pairs = zip(self.rates[what], self.rates[base], strict=True)
        return percentile([mine / theirs for mine, theirs in pairs], 50)

    def show(self, pairs: Iterable[tuple[str, str, str]], title: str) -> None:
        """Print what was measured beside its baselines."""
        lines = [self._line(*pair) for pair in pairs]
        table(title, ["", "agentbus", "against", "", "ratio", "wanted"], lines)

    def _line(self, what: str, base: str, wanted: str) -> list[str]:
        mine, theirs = f"{self.rate(what):,.0f}", f"{self.rate(base):,.0f}"
        return [what, mine, base, theirs, f"{self.ratio(what, base):.2f}", wanted]

    def rows(self, pairs: Iterable[tuple[str, str, str]]) -> tuple[Row, ...]:
        """Return each baseline, and after it what was measured against it."""
        groups: dict[str, list[Row]] = {}
        for what, base, wanted in pairs:
            if base not in groups:
                groups[base] = [Row(base, Spread.of(self.rates[base]), "baseline", group=base)]
            ours, ratio = Spread.of(self.rates[what]), self.ratio(what, base)
            wanted = wanted.replace(">=", "≥")
            groups[base].append(
                Row(what, ours, ratio=ratio, against=base, wanted=wanted, group=base)
            )
        return tuple(row for rows in groups.values() for row in rows)


def throughput(clock: Stopwatch, server: Server, tasks: int, rounds: int) -> Iterator[Figure]:
    """The hand-written loop reads 500 tasks with `XREADGROUP`, decodes each, and sends one `XACK` for all.

    By hand, payloads are encoded and decoded with orjson, as they are here.
    The worker also checks that it still owns each task, counts attempts and metrics, sends heartbeats
    and can be paused. A hand-written publisher that takes a key first (`SET NX`) loses the task if it
    dies in between; `publish` with a key does both in one step.
    """
    _timed(clock, server, tasks, rounds)
    clock.show((pair[:3] for pair in _PAIRS), f"tasks a second, {rounds} rounds of {tasks:,}")
    for name, title in _PICTURES.items():
        rows: list[Row] = []
        for what, base, wanted, picture in _PAIRS:
            if picture == name:
                by_hand, ours = (Spread.of(clock.rates[each]) for each in (base, what))
                ratio, wanted = clock.ratio(what, base), wanted.replace(">=", "≥")
                rows.append(Row(base, by_hand, "baseline", group=what))
                rows.append(Row(what, ours, ratio=ratio, against=base, wanted=wanted, group=what))
        yield Figure(
            name=f"queue-{name}",
            source="queue.throughput",
            title=title,
            measured=f"median of {rounds} rounds of {tasks if name == 'batches' else few(tasks):,}",
            unit="tasks/s",
            rows=tuple(rows),
        )


def few(tasks: int) -> int:
    """Return how many tasks a round sends one by one."""
    return max(1000, tasks // 20)


def _timed(clock: Stopwatch, server: Server, tasks: int, rounds: int) -> None:
    raw = queue_raw.client(server.socket)
    single = few(tasks)
    seen: list[Any] = []

    def sync(delivery: Any) -> None:
        seen.append(delivery.payload)

    def listed(deliveries: Any) -> None:
        seen.extend(delivery.payload for delivery in deliveries)

    async def later(delivery: Any) -> None:
        seen.append(delivery.payload)

    with agentbus.connect(server.url, project="bench", agent="bench") as bus:
        queue = bus.queue("mail", bound=_BOUND)

        def singly() -> None:
            for number in range(single):
                queue.publish(queue_raw.payload(number))

        def keyed() -> None:
            for number in range(single):
                queue.publish(queue_raw.payload(number), key=f"key-{number}")

        def batched() -> None:
            queue.publish_many(queue_raw.payload(i) for i in range(tasks))

        def consume(handler: Callable[[Any], object], *, batch: bool = False) -> None:
            done = bus.subscribe("mail", handler, drain=True, batch=batch).run()
            assert done == tasks == len(seen), (done, len(seen))
            seen.clear()

        for _ in range(rounds):
            raw.flushall()
            clock("XADD one by one", single, lambda: queue_raw.publish_singly(raw, single))
            clock("publish", single, singly)
            clock("SET NX, XADD", single, lambda: queue_raw.publish_keyed(raw, single))
            clock("publish with a key", single, keyed)
            raw.flushall()
            queue_raw.group(raw)
            clock("pipelines of 500", tasks, lambda: queue_raw.publish_pipelined(raw, tasks))
            clock("publish_many", tasks, batched)
            clock("XREADGROUP, one XACK", tasks, lambda: queue_raw.consume(raw, seen.append, tasks))
            seen.clear()
            clock("worker", tasks, lambda: consume(sync))
            batched()
            clock("worker, batch=True", tasks, lambda: consume(listed, batch=True))
            batched()
            clock("worker, async handler", tasks, lambda: consume(later))


def memory(server: Server, tasks: int) -> Iterator[Figure]:
    """Server memory per task, counting all keys of the project, against a hand-written stream."""
    server.ask("FLUSHALL")
    raw = queue_raw.client(server.socket)
    pipe = raw.pipeline(transaction=False)
    with agentbus.connect(server.url, project="bench", agent="bench") as bus:
        bus.queue("mail", bound=_BOUND).publish_many(queue_raw.payload(i) for i in range(tasks))
        keys = server.ask("KEYS", "bench:*")
        mine = sum(server.ask("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys)
        for _, fields in raw.xrange("bench:q:mail"):  # type: ignore[union-attr]
            pipe.xadd("raw", fields)
        pipe.execute()
    base = server.ask("MEMORY", "USAGE", "raw", "SAMPLES", 0)
    found = [f"{mine / tasks:.1f}", f"{base / tasks:.1f}", f"{mine / base:.3f}", "<= 1.15"]
    table("bytes a task in the server", ["agentbus", "raw stream", "ratio", "wanted"], [found])
    by_hand = Row("a raw stream", Spread.once(base / tasks), "baseline")
    ours = Row(
        "a queue",
        Spread.once(mine / tasks),
        ratio=mine / base,
        against=by_hand.label,
        wanted="≤ 1.15",
    )
    yield Figure(
        name="queue-memory",
        source="queue.memory",
        title="Memory of a task",
        measured=f"MEMORY USAGE with {tasks:,} tasks",
        unit="bytes",
        better="less",
        rows=(by_hand, ours),
    )


def queues(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure what was named, or all."""
    parts = given.parts or PARTS
    clock = Stopwatch()
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder), "--appendonly", "no") as server,
    ):
        software = ", ".join(f"{name} {version(name)}" for name in ("redis", "hiredis", "orjson"))
        about = dict(
            line.split(":", 1) for line in server.ask("INFO").decode().split() if ":" in line
        )
        number = about.get("valkey_version") or about["redis_version"]
        sys.stdout.write(f"Python {sys.version.split()[0]}, server {number}, {software}\n")
        if "throughput" in parts:
            yield from throughput(clock, server, given.tasks, given.rounds)
        if "latency" in parts:
            yield from queue_latency.latency(server, given.samples)
            yield from queue_latency.lateness(server, given.samples // 5)
        if "memory" in parts:
            yield from memory(server, given.tasks)
        if "growth" in parts:
            yield from queue_growth.grown(server, [10_000, given.most], [0, 1_000], 5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--tasks", type=int, default=50_000, help="tasks a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=1000, help="tasks whose latency is measured")
    parser.add_argument("--most", type=int, default=1_000_000, help="the deepest queue")
    run(queues, parser, SIZES)


if __name__ == "__main__":
    main()
