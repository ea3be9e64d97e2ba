"""What a dashboard costs: CPU time of the server and of the reader, with many queues and agents.

The project has queues with tasks in each state, agents with unread messages, leases and flags, and is
worked in while a view reads a snapshot each second. What the server does without the view is subtracted.

    python -m scripts.benchmarks.dashboard [--queues N] [--agents N] [--tasks N] [--messages N]
        [--seconds S]
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import agentbus
from agentbus.client.bus import Bus
from agentbus.coordination import presence
from agentbus.dashboard import Dashboard, RowRange, Snapshot
from agentbus.store.scope import Scope
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from scripts.benchmarks._streams import PROJECT, served
from tests.servers import ROOT, Server, Shell
from tests.terminals import Terminal

SIZES = {
    "quick": {"queues": 30, "agents": 50, "seconds": 2.0, "messages": 500, "rounds": 1},
    "page": {"rounds": 3},
}
_FLAGS, _LEASES = 100, 100
# The screens of `top`, as columns and lines.
_SCREENS = ((80, 24), (200, 60))
_LOAD = "scripts.benchmarks._dashboard_load"
# The rows of a large screen.
_ROWS = RowRange(limit=50)


def cpu(pid: int) -> float:
    """Return the seconds of CPU time that a process has taken, with all its threads."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def fill(bus: Bus, queues: int, agents: int) -> None:
    """Make the project, with tasks in each state."""
    place = {"client": "claude", "host": "bench", "branch": "main", "cwd": "/shop"}
    for number in range(agents):
        scope = Scope(PROJECT, f"agent-{number}")
        bus.runner.run(presence.here(scope, doing=f"task {number}", place=place))
        if number % 5 == 0:
            bus.tell(f"agent-{number}", "hello")
    for number in range(queues):
        queue = bus.queue(f"queue-{number}")
        queue.publish_many([{"n": n, "text": "x" * 200} for n in range(12)])
        done, aside, buried, *_ = queue.fetch(count=5)
        done.ack()
        if number % 10 == 0:
            aside.retry(3600.0)
            buried.bury("broken")
            queue.publish({"n": 1}, delay=3600.0)
            queue.publish({"n": 1}, priority="high")
    for number in range(_FLAGS):
        bus.announce(f"flag-{number}", ttl=3600)
    for number in range(_LEASES):
        bus.lease(f"src/{number}/**", ttl=3600).__enter__()


@contextlib.contextmanager
def load(server: Server, kind: str, rate: float) -> Iterator[None]:
    """Let a process work, publish or speak."""
    words = [sys.executable, "-m", _LOAD, kind, server.socket, PROJECT, str(rate)]
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"the load ended: {kind}")
    finally:
        process.kill()
        process.wait()


class Site:
    """The server with a project at work, and how many rounds of how many seconds are measured."""

    def __init__(self, server: Server, given: argparse.Namespace) -> None:
        assert server.process is not None
        self.server = server
        self.pid = server.process.pid
        self.seconds: float = given.seconds
        self.rounds: int = given.rounds
        self.server_cpu: list[float] = []
        self.reader_cpu: list[float] = []
        self.took: list[float] = []

    def snapshots(self, dashboard: Dashboard) -> None:
        """Read one each second, in turns with seconds without a view; add up what each costs."""
        for _ in range(self.rounds):
            idle = self._beside(lambda _until: None)
            began = time.process_time()
            taken = len(self.took)
            busy = self._beside(lambda until: self._read(dashboard, until))
            number = len(self.took) - taken
            self.server_cpu.append((busy - idle) / self.seconds * 100)
            self.reader_cpu.append((time.process_time() - began) / number * 100)

    def _beside(self, view: Callable[[float], None]) -> float:
        began, until = cpu(self.pid), time.monotonic() + self.seconds
        view(until)
        time.sleep(max(0.0, until - time.monotonic()))
        return cpu(self.pid) - began

    def _read(self, dashboard: Dashboard, until: float) -> None:
        while (began := time.monotonic()) < until:
            found = dashboard.snapshot(queues=_ROWS, agents=_ROWS, flags=_ROWS, leases=_ROWS)
            self.took.append(found.took * 1000)
            time.sleep(max(0.0, began + 1.0 - time.monotonic()))

    def top(self, columns: int, lines: int) -> float:
        """Return what `agentbus top` takes of a core on a terminal, in percent."""
        environment = {"AGENTBUS_URL": self.server.url, "AGENTBUS_PROJECT": PROJECT}
        shell = Shell(self.server.place.parent / "home", environment)
        terminal = Terminal(shell, "top", columns=columns, lines=lines)
        reader = threading.Thread(target=terminal.read_to_the_end, daemon=True)
        try:
            terminal.read_until("BACKLOG")
            reader.start()
            # The first frames read all lists.
            time.sleep(2.0)
            began = cpu(terminal.process.pid)
            time.sleep(self.seconds)
            return (cpu(terminal.process.pid) - began) / self.seconds * 100
        finally:
            terminal.process.kill()
            terminal.process.wait()
            reader.join()
            terminal.close()


def spoken(server: Server, bus: Bus, given: argparse.Namespace) -> tuple[float, Snapshot]:
    """Check that each message is in one snapshot, or counted as left out; return how many came a second."""
    dashboard, channel = Dashboard(bus), f"{PROJECT}:ch:main"
    bus.speak("begin")
    newest = dashboard.snapshot().messages[-1].id
    before, number = _added(bus, channel), 0
    with load(server, "speak", given.messages):
        while (started := _added(bus, channel)) == before:
            time.sleep(0.01)
        began = time.monotonic()
        while (at := time.monotonic()) < began + given.seconds:
            time.sleep(max(0.0, at + 1.0 - time.monotonic()))
            last = dashboard.snapshot()
            number, newest = number + _counted(last, newest), last.messages[-1].id
        rate = (_added(bus, channel) - started) / (time.monotonic() - began)
    number += _counted(dashboard.snapshot(), newest)
    came = _added(bus, channel) - before
    if number != came or rate < given.messages * 0.9:
        raise SystemExit(f"{came} messages came, {rate:,.0f} a second; {number} shown or left out")
    return rate, last


def _counted(found: Snapshot, newest: str) -> int:
    """Return how many messages came with a snapshot; fail if one of them is not new."""
    ids = [_position(one.id) for one in found.messages]
    if ids != sorted(set(ids)) or (ids and ids[0] <= _position(newest)):
        raise SystemExit("a message is shown twice, or out of order")
    return len(ids) + found.missed


def _added(bus: Bus, channel: str) -> int:
    from agentbus.store.steps import Command, one_step

    reply = bus.runner.run(one_step(Command("XINFO", "STREAM", channel)))
    return int(reply[reply.index(b"entries-added") + 1])


def _position(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence)


def dashboard(given: argparse.Namespace) -> Iterator[Figure]:
    """One view that reads a snapshot each second, of a project at work.

    The shares are of one core. Of the server, it is what it takes beside the work, which is measured in
    turns with and without the view. `top` is the whole process, with what it draws.
    """
    with served() as (server, _):
        with agentbus.connect(server.url, project=PROJECT, agent="bench") as bus:
            fill(bus, given.queues, given.agents)
            site = Site(server, given)
            with contextlib.ExitStack() as working:
                for kind in ("work", "publish"):
                    working.enter_context(load(server, kind, given.tasks))
                view = Dashboard(bus)
                first = view.snapshot(queues=_ROWS, agents=_ROWS, flags=_ROWS, leases=_ROWS)
                site.snapshots(view)
                screens = {size: site.top(*size) for size in _SCREENS}
            rate, last = spoken(server, bus, given)
    about = (
        f"{given.queues:,} queues, {given.agents:,} agents, {given.tasks:g} tasks a second; the first"
        f" snapshot took {first.took * 1000:.0f} ms. At {rate:,.0f} messages a second each one was shown"
        f" or counted as left out: {len(last.messages)} and {last.missed:,} in the last snapshot"
    )
    rows = [
        Row("the server", Spread.of(site.server_cpu), wanted="≤ 2"),
        Row("the reader of snapshots", Spread.of(site.reader_cpu)),
        *(
            Row(f"top, {columns} x {lines}", Spread.once(found), wanted="≤ 5")
            for (columns, lines), found in screens.items()
        ),
    ]
    times = [Row(f"a snapshot, p{part}", Spread.at(part, site.took)) for part in (50, 95)]
    table(
        about,
        ["", "", "wanted"],
        [
            *([row.label, f"{row.spread.middle:.2f} %", row.wanted] for row in rows),
            *([row.label, f"{row.spread.middle:.1f} ms", row.wanted] for row in times),
        ],
    )
    yield Figure(
        name="dashboard-cpu",
        source="dashboard.dashboard",
        title="CPU time of a dashboard",
        measured=about,
        unit="% of a core",
        better="less",
        rows=tuple(rows),
    )
    yield Figure(
        name="dashboard-time",
        source="dashboard.dashboard",
        title="A snapshot of a large project",
        measured=f"{given.queues:,} queues, {given.agents:,} agents, {given.tasks:g} tasks a second",
        unit="ms",
        better="less",
        rows=tuple(times),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--tasks", type=float, default=100.0)
    parser.add_argument("--messages", type=float, default=3_000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    run(dashboard, parser, SIZES)
