"""What each part of a project costs its server, and whether that predicts what a cluster's nodes need.

Server CPU is what INFO reports (used_cpu_user and used_cpu_sys), not wall time, so other work on the
machine disturbs it little; memory is used_memory.

    python -m scripts.benchmarks.capacity [--tasks N] [--items N] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.dashboard import Dashboard, RowRange
from agentbus.errors import TimedOut
from agentbus.events import Consumer, Ledger, Relay, register, send_event
from agentbus.tasks import Scheduler, Schedules
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from scripts.benchmarks.queue_raw import payload
from tests.servers import Server, free_port

SIZES = {
    "quick": {"tasks": 1000, "items": 100, "waiting": 20, "seconds": 2.0, "rounds": 1},
    "page": {},
}
# As a server in production has it; the tests' default is `always`.
_AOF = ("--appendfsync", "everysec")
_SLOTS = 16384
_BOUND = 100_000_000
_DONE_WITHIN = 30.0
_GLANCE = 0.05


class Meter:
    """The CPU time, in µs, and the memory of servers."""

    def __init__(self, *servers: Server) -> None:
        self._servers = servers

    def _sum(self, section: str, *names: str) -> float:
        total = 0.0
        for server in self._servers:
            lines = server.ask("INFO", section).decode().split()
            about = dict(line.split(":", 1) for line in lines if ":" in line)
            total += sum(float(about[name]) for name in names)
        return total

    def cpu(self, work: Callable[[], object]) -> float:
        """Return the CPU time that the servers take while a function runs."""
        before = self._sum("cpu", "used_cpu_user", "used_cpu_sys")
        work()
        return (self._sum("cpu", "used_cpu_user", "used_cpu_sys") - before) * 1e6

    def memory(self) -> float:
        """Return the bytes that the servers use."""
        return self._sum("memory", "used_memory")

    def grown(self, work: Callable[[], object]) -> float:
        """Return the bytes by which the servers grow while a function runs."""
        before = self.memory()
        work()
        return self.memory() - before


def _nothing(_delivery: object) -> None:
    return None


def _work(bus: agentbus.Bus) -> None:
    with bus.subscribe("work", _nothing, drain=True) as worker:
        worker.run()


class Unit:
    """What one thing costs: `cpu` in µs, `bytes` of memory; each has a value a round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cpu: list[float] = []
        self.bytes: list[float] = []


def tasks(meter: Meter, buses: Sequence[agentbus.Bus], number: int) -> dict[str, float]:
    """Return the cost of a task that is published in a batch and handled, spread over projects."""
    for bus in buses:
        bus.queue("work", bound=_BOUND).publish_many(payload(n) for n in range(200))
        _work(bus)
    queues = [bus.queue("work", bound=_BOUND) for bus in buses]
    many = [payload(n) for n in range(number // len(buses))]
    published = 0.0

    def publish() -> None:
        # One project after the other: nodes on separate machines do not share a processor's cache.
        for queue in queues:
            queue.publish_many(many)

    def measured() -> None:
        nonlocal published
        published = meter.cpu(publish)

    held = meter.grown(measured)
    worked = meter.cpu(lambda: [_work(bus) for bus in buses])
    return {
        "publish": published / number,
        "work": worked / number,
        "bytes": held / number,
    }


def _agents(meter: Meter, url: str, number: int, seconds: float) -> tuple[float, float]:
    """Return the CPU time a second, and the bytes, of an agent with a connection that awaits a flag."""
    opened = threading.Barrier(number + 1)

    def wait(n: int) -> None:
        with agentbus.connect(url, project="waits", agent=f"agent-{n}") as bus:
            bus.overhear(limit=1)
            opened.wait()
            with contextlib.suppress(TimedOut):
                bus.await_("never", timeout=seconds + 2.0)

    before = meter.memory()
    threads = [threading.Thread(target=wait, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    opened.wait()
    time.sleep(1.0)
    held = meter.memory() - before
    spent = meter.cpu(lambda: time.sleep(seconds))
    for thread in threads:
        thread.join()
    return spent / number / seconds, held / number


def _idle_workers(meter: Meter, url: str, number: int, seconds: float) -> tuple[float, float]:
    """Return the CPU time a second, and the bytes, of a worker that waits for tasks."""
    with contextlib.ExitStack() as stack:
        before, threads, workers = meter.memory(), [], []
        for n in range(number):
            bus = stack.enter_context(agentbus.connect(url, project="idle", agent=f"worker-{n}"))
            workers.append(stack.enter_context(bus.subscribe("idle", _nothing)))
            threads.append(threading.Thread(target=workers[-1].run))
            threads[-1].start()
        time.sleep(2.0)
        held = meter.memory() - before
        spent = meter.cpu(lambda: time.sleep(seconds))
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
    return spent / number / seconds, held / number


def _flags(meter: Meter, bus: agentbus.Bus, number: int) -> tuple[float, float]:
    """Return the CPU time of a hold from `announce` to `satisfy`, and the bytes while it is held."""
    spent = 0.0

    def announce() -> None:
        nonlocal spent
        spent += meter.cpu(lambda: [bus.announce(f"flag-{n}") for n in range(number)])

    held = meter.grown(announce)
    spent += meter.cpu(lambda: [bus.satisfy(f"flag-{n}") for n in range(number)])
    return spent / number, held / number


def _schedules(meter: Meter, bus: agentbus.Bus, number: int, seconds: float) -> tuple[float, float]:
    """Return the CPU time of a tick, and the bytes of a schedule."""
    schedules = Schedules(bus)

    def add() -> None:
        for n in range(number):
            schedules.add(f"schedule-{n}", "ticks", payload(n), every=1.0)

    held = meter.grown(add)

    def run() -> None:
        with Scheduler(bus):
            time.sleep(seconds)

    bus.queue("ticks", bound=_BOUND)
    spent = meter.cpu(run)
    ticks = sum(each.published for each in schedules.list())
    return spent / max(1, ticks), held / number


def _events(
    meter: Meter, bus: agentbus.Bus, number: int, place: pathlib.Path
) -> tuple[float, float]:
    """Return the CPU time of an event, published and handled by one consumer, and the bytes until then."""
    engine = sa.create_engine(f"sqlite:///{place}")
    ledger = Ledger(engine)
    ledger.create()
    with Session(engine) as session:
        for n in range(number):
            send_event(session, "events", "Placed", payload(n))
        session.commit()
    relay = Relay(ledger, bus)
    consumer = Consumer(
        register(lambda _events, _session: None, "events", name="all", batch=True), ledger, bus
    )
    spent = 0.0

    def publish() -> None:
        nonlocal spent
        spent += meter.cpu(relay.run_once)

    held = meter.grown(publish)
    spent += meter.cpu(consumer.run_once)
    relay.close()
    consumer.close()
    engine.dispose()
    return spent / number, held / number


def _view(meter: Meter, bus: agentbus.Bus, number: int) -> float:
    """Return the CPU time of one refresh of a dashboard."""
    view, rows = Dashboard(bus), RowRange(limit=50)

    def read() -> None:
        view.snapshot(queues=rows, agents=rows, flags=rows, leases=rows)

    read()
    return meter.cpu(lambda: [read() for _ in range(number)]) / number


def units(given: argparse.Namespace, place: pathlib.Path) -> dict[str, Unit]:
    """Return what each thing costs on one server, the median of the rounds."""
    measured: dict[str, Unit] = {}

    def add(name: str, cpu: float, size: float = 0.0) -> None:
        unit = measured.setdefault(name, Unit(name))
        unit.cpu.append(cpu)
        unit.bytes.append(size)

    for number in range(given.rounds):
        with Server(place / f"one-{number}", *_AOF) as server:
            meter = Meter(server)
            with agentbus.connect(server.tcp_url, project="cost", agent="bench") as bus:
                cost = tasks(meter, [bus], given.tasks)
                add("task published in a batch", cost["publish"], cost["bytes"])
                add("task handled", cost["work"])
                queue = bus.queue("alone", bound=_BOUND)
                spent = meter.cpu(
                    lambda queue=queue: [queue.publish(payload(n)) for n in range(given.items)]
                )
                add("task published alone", spent / given.items)
                add("flag held", *_flags(meter, bus, given.items))
                add("schedule's tick", *_schedules(meter, bus, given.items, given.seconds))
                add("event", *_events(meter, bus, given.tasks, place / f"{number}.db"))
                add("dashboard's refresh", _view(meter, bus, 20))
                url = server.tcp_url
                rest = meter.cpu(lambda: time.sleep(given.seconds)) / given.seconds
                add("server at rest, a second", rest)
                for name, measure in (
                    ("agent that waits, a second", _agents),
                    ("worker without tasks, a second", _idle_workers),
                ):
                    cpu, size = measure(meter, url, given.waiting, given.seconds)
                    add(name, cpu - rest / given.waiting, size)
    return measured


@contextlib.contextmanager
def cluster(place: pathlib.Path, number: int) -> Iterator[list[Server]]:
    """Start a cluster of some primaries that share the slots evenly."""
    with contextlib.ExitStack() as opened:
        nodes, buses = [], []
        for each in range(number):
            buses.append(free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]), *_AOF)
            nodes.append(opened.enter_context(Server(place / str(each), *options)))
        for each, node in enumerate(nodes):
            first, end = (_SLOTS * i // number for i in (each, each + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", each + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until = time.monotonic() + _DONE_WITHIN
        for node in nodes:
            while b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                if time.monotonic() > until:
                    raise SystemExit("the cluster did not come up")
                time.sleep(_GLANCE)
        yield nodes


def _project_on(nodes: Sequence[Server], wanted: int) -> str:
    """Return the name of a project whose keys are on a node."""
    for n in range(10_000):
        slot = nodes[0].ask("CLUSTER", "KEYSLOT", f"{{p{n}}}:x")
        if slot * len(nodes) // _SLOTS == wanted:
            return f"p{n}"
    raise SystemExit("no project is on that node")


def on_one(given: argparse.Namespace, place: pathlib.Path) -> dict[str, float]:
    """Return what a task costs one server that is not in a cluster: the prediction."""
    with (
        Server(place, *_AOF) as server,
        agentbus.connect(server.tcp_url, project="cost", agent="bench") as bus,
    ):
        return _cost(given, Meter(server), [bus])


def _cost(
    given: argparse.Namespace, meter: Meter, buses: Sequence[agentbus.Bus]
) -> dict[str, float]:
    """Return the cost of a task without what the servers take at rest, such as their heartbeats."""
    rest = meter.cpu(lambda: time.sleep(given.seconds)) / given.seconds
    began, number = time.monotonic(), given.tasks * len(buses)
    cost = tasks(meter, buses, number)
    idle = rest * (time.monotonic() - began) / number
    return {"cpu": cost["publish"] + cost["work"] - idle, "bytes": cost["bytes"]}


def on_nodes(given: argparse.Namespace, place: pathlib.Path, number: int) -> dict[str, float]:
    """Return what a task costs all nodes of a cluster, with a project on each."""
    with cluster(place, number) as nodes, contextlib.ExitStack() as stack:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        buses = [
            stack.enter_context(agentbus.connect(url, project=_project_on(nodes, n), agent="bench"))
            for n in range(number)
        ]
        return _cost(given, Meter(*nodes), buses)


def capacity(given: argparse.Namespace) -> Iterator[Figure]:
    """What things cost on one server, and a prediction beside what 1, 2 and 3 nodes of a cluster need.

    A task has a payload of 200 bytes, is published in a batch and handled by a worker. The prediction is
    the cost of a task on one server alone; on the nodes of a cluster there is a project on each.
    """
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        place = pathlib.Path(folder)
        costs = units(given, place)
        alone: list[dict[str, float]] = []
        nodes: dict[int, list[dict[str, float]]] = {1: [], 2: [], 3: []}
        # The prediction and the clusters take turns: other work on the machine disturbs all alike.
        for turn in range(2 * given.rounds):
            alone.append(on_one(given, place / f"{turn}-alone"))
            for number, costs in nodes.items():
                costs.append(on_nodes(given, place / f"{turn}-{number}", number))
    table(
        f"cost on one server, median of {given.rounds}",
        ["", "µs of CPU", "bytes"],
        [
            [
                unit.name,
                f"{statistics.median(unit.cpu):.1f}",
                f"{size:,.0f}" if (size := statistics.median(unit.bytes)) else "-",
            ]
            for unit in costs.values()
        ],
    )
    rows, data = [], []
    for what, unit in (("cpu", "µs"), ("bytes", "bytes")):
        predicted = Spread.of(cost[what] for cost in alone)
        data.append(Row("predicted", predicted, "baseline", group=f"{unit} a task"))
        for number, costs in nodes.items():
            spread = Spread.of(cost[what] for cost in costs)
            pairs = zip(costs, alone, strict=True)
            ratio = statistics.median(measured[what] / base[what] for measured, base in pairs)
            middle = (f"{predicted.middle:.1f}", f"{spread.middle:.1f}", f"{ratio:.3f}")
            rows.append([str(number), f"{unit} a task", *middle])
            data.append(
                Row(
                    *(f"{number} nodes" if number > 1 else "1 node", spread),
                    ratio=ratio,
                    against="predicted",
                    wanted="0.85 to 1.15",
                    group=f"{unit} a task",
                )
            )
    table("nodes of a cluster", ["nodes", "", "predicted", "measured", "ratio"], rows)
    yield Figure(
        name="capacity-units",
        source="capacity.capacity",
        title="CPU time of the server for each thing",
        measured=f"INFO, median of {given.rounds} rounds",
        unit="µs",
        better="less",
        rows=tuple(Row(unit.name, Spread.of(unit.cpu)) for unit in costs.values()),
    )
    yield Figure(
        name="capacity-nodes",
        source="capacity.capacity",
        title="A task on the nodes of a cluster, beside the prediction",
        measured=f"INFO of all nodes, {given.tasks:,} tasks a node, median of {given.rounds} rounds",
        unit="µs or bytes",
        better="less",
        rows=tuple(data),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    run(capacity, parser, SIZES)


if __name__ == "__main__":
    main()
