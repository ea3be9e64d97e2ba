"""How fast queues are, against redis-py written by hand and against other task queues, in one run.

Payloads have 200 bytes; a trivial handler is called once for each task. The server keeps no
append-only file (`--appendonly no`), for all alike. What is compared runs in turns, and the ratio
is the median of the rounds' ratios, so that a machine that is busy for a while disturbs both sides.

Run it as `python -m tests.bench.queue`; `--peers` installs other task queues and measures them too.
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import agentbus
from tests.bench import queue_growth, queue_latency, queue_peers, queue_raw
from tests.bench._figures import percentile, table
from tests.servers import Server

PARTS = ("throughput", "latency", "memory", "growth")
_BOUND = 100_000_000


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

    def row(self, what: str, base: str, wanted: str) -> list[str]:
        """Return one line of the table."""
        mine, theirs = f"{self.rate(what):,.0f}", f"{self.rate(base):,.0f}"
        return [what, mine, base, theirs, f"{self.ratio(what, base):.2f}", wanted]


def throughput(server: Server, tasks: int, rounds: int) -> Stopwatch:
    """Measure publishing and consuming."""
    clock = Stopwatch()
    raw = queue_raw.client(server.socket)
    few = max(1000, tasks // 20)
    seen: list[Any] = []

    def sync(delivery: Any) -> None:
        seen.append(delivery.payload)

    async def later(delivery: Any) -> None:
        seen.append(delivery.payload)

    with agentbus.connect(server.url, project="bench", agent="bench") as bus:
        queue = bus.queue("mail", bound=_BOUND)

        def singly() -> None:
            for number in range(few):
                queue.publish(queue_raw.payload(number))

        def keyed() -> None:
            for number in range(few):
                queue.publish(queue_raw.payload(number), key=f"key-{number}")

        def batched() -> None:
            queue.publish_many(queue_raw.payload(i) for i in range(tasks))

        def consume(handler: Callable[[Any], object]) -> None:
            done = bus.subscribe("mail", handler, drain=True).run()
            assert done == tasks == len(seen), (done, len(seen))

        for _ in range(rounds):
            raw.flushall()
            clock("XADD one by one", few, lambda: queue_raw.publish_singly(raw, few))
            clock("publish", few, singly)
            clock("SET NX, XADD", few, lambda: queue_raw.publish_keyed(raw, few))
            clock("publish with a key", few, keyed)
            raw.flushall()
            queue_raw.group(raw)
            clock("pipelines of 500", tasks, lambda: queue_raw.publish_pipelined(raw, tasks))
            clock("publish_many", tasks, batched)
            clock("XREADGROUP, one XACK", tasks, lambda: queue_raw.consume(raw, seen.append, tasks))
            seen.clear()
            clock("worker", tasks, lambda: consume(sync))
            seen.clear()
            batched()
            clock("worker, async handler", tasks, lambda: consume(later))
            seen.clear()
    return clock


def memory(server: Server, tasks: int) -> list[str]:
    """Measure what a task costs in the server, all keys of the project counted."""
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
    ratio = f"{mine / base:.3f}"
    return [f"{mine / tasks:.1f}", f"{base / tasks:.1f}", ratio, "<= 1.15"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--tasks", type=int, default=50_000, help="tasks a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most", type=int, default=1_000_000, help="the deepest queue")
    parser.add_argument("--peers", action="store_true", help="install and measure other queues")
    parser.add_argument("--peers-python", help="a Python that has the other queues already")
    chosen = parser.parse_args()
    parts = chosen.parts or PARTS
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
        clock = throughput(server, chosen.tasks, chosen.rounds) if "throughput" in parts else None
        if clock:
            lines = [
                clock.row("publish_many", "pipelines of 500", ">= 2.0"),
                clock.row("publish", "XADD one by one", ">= 1.0"),
                clock.row("publish with a key", "SET NX, XADD", ">= 1.0"),
                clock.row("publish with a key", "XADD one by one", ""),
                clock.row("worker", "XREADGROUP, one XACK", ">= 0.65"),
                clock.row("worker, async handler", "worker", ">= 0.8"),
            ]
            table(
                f"tasks a second, {chosen.rounds} rounds of {chosen.tasks:,}",
                ["", "agentbus", "against", "", "ratio", "wanted"],
                lines,
            )
        if "latency" in parts:
            took = queue_latency.measure(server, 1000)
            lines = []
            for part, wanted in ((50, "<= 1.2"), (99, "<= 2")):
                mine, base = (percentile(took[what], part) for what in ("agentbus", "raw"))
                lines.append(
                    [f"p{part}", f"{mine:.3f}", f"{base:.3f}", f"{mine / base:.2f}", wanted]
                )
            head = ["", "agentbus ms", "raw ms", "ratio", "wanted"]
            table("from publish to the handler, 1,000 tasks", head, lines)
            late = queue_latency.lateness(server, 200)
            found = [f"{percentile(late, part):.2f}" for part in (50, 99, 100)]
            table(
                "milliseconds by which 200 delayed tasks were late",
                ["p50", "p99", "max", "wanted"],
                [[*found, "<= 50"]],
            )
        if "memory" in parts:
            head = ["agentbus", "raw stream", "ratio", "wanted"]
            table("bytes a task in the server", head, [memory(server, chosen.tasks)])
        if "growth" in parts:
            rows = queue_growth.measure(server, [10_000, chosen.most], [0, 1_000], 5)
            table("microseconds a task, quickest of 5", ["", "publish_many", "worker"], rows)
        if chosen.peers or chosen.peers_python:
            found, peers = queue_peers.measure(server, 5_000, 3, chosen.peers_python)
            mine = [clock.rate("publish_many"), clock.rate("worker")] if clock else [0.0, 0.0]
            lines = [
                [name, f"{a:,.0f}", f"{mine[0] / a:.1f}", f"{b:,.0f}", f"{mine[1] / b:.1f}"]
                for name, (a, b) in peers.items()
            ]
            head = ["", "published/s", "agentbus is x", "consumed/s", "agentbus is x"]
            table(f"other queues, a handler call for each task ({found})", head, lines)


if __name__ == "__main__":
    main()
