"""Other task queues beside this one, each in a separate environment, in turns on one server.

Each is used in the fastest way that its documentation shows for one process, on uvloop where its own
program uses it, and is warm when the time is taken. Payloads have 200 bytes, handlers do nothing, and
results are not kept. The server keeps no append-only file. OmniDaemon's pattern is that of its bus: read
ten, await a handler for each, acknowledge each. The queues differ in other features (results, middleware,
schedules), and in what they guarantee if a worker dies.

    python -m scripts.benchmarks.peers [--tasks N] [--rounds N] [NAME...]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from collections.abc import Iterator

from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from scripts.benchmarks._peer import PEERS
from tests.servers import Server

SIZES = {"quick": {"tasks": 2_000, "rounds": 3}, "page": {"rounds": 5}}
# What each is installed from; its name is that of the first package, without extras.
NEEDS = {
    "celery": ("celery[redis]", "hiredis"),
    "dramatiq": ("dramatiq[redis]", "hiredis"),
    "faststream": ("faststream[redis]", "hiredis", "uvloop"),
    "huey": ("huey", "redis", "hiredis"),
    "OmniDaemon's pattern": ("redis", "hiredis"),
    "rq": ("rq", "hiredis"),
    "streaq": ("streaq", "hiredis", "uvloop"),
    "taskiq": ("taskiq", "taskiq-redis", "hiredis", "uvloop"),
}
_CLIENTS = ("redis", "coredis")


class Environments:
    """A Python for each of the queues, with the newest version of it, and of what it needs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._pythons: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def python(self, name: str) -> str:
        """Return the Python that has a queue, and install that at first."""
        package = name.partition(",")[0]
        if package == "AgentBus":
            return sys.executable
        if package not in self._pythons:
            place = self._folder / str(len(self._pythons))
            venv.create(place)
            python = str(place / "bin/python")
            subprocess.run([*_pip(python), "install", "--quiet", *NEEDS[package]], check=True)
            self._pythons[package] = python
            self._versions[package] = self._version(python, NEEDS[package][0].partition("[")[0])
        return self._pythons[package]

    def versions(self) -> str:
        """Return which versions were installed, each with its client of Redis."""
        return ", ".join(self._versions.values())

    @staticmethod
    def _version(python: str, package: str) -> str:
        listed = subprocess.run(
            [*_pip(python), "list", "--format", "json"], check=True, capture_output=True
        ).stdout
        versions = {each["name"].lower(): each["version"] for each in json.loads(listed)}
        clients = [f"{name} {versions[name]}" for name in _CLIENTS if name in versions]
        own = f"{package} {versions[package]}"
        return own if package in _CLIENTS else f"{own} ({', '.join(clients)})"


def _pip(python: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--python", python]


def compared(given: argparse.Namespace) -> Iterator[Figure]:
    """A ratio is the median of the rounds' ratios, each of two queues measured one after the other.

    What publishes or handles batches stands beside what does so too, and single tasks beside single tasks.
    """
    names = [name for name in PEERS if not given.names or name in given.names]
    rates: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder) / "server", "--appendonly", "no") as server,
    ):
        environments = Environments(pathlib.Path(folder))
        for _ in range(given.rounds):
            for name in names:
                server.ask("FLUSHALL")
                rates[name].append(_measured(environments.python(name), name, server, given.tasks))
        software = environments.versions()
    for at, way in enumerate(("published", "consumed")):
        rows = tuple(_rows(rates, at))
        lines = [
            [row.group, row.label, f"{row.spread.middle:,.0f}", f"{row.ratio or 1:.3f}"]
            for row in rows
        ]
        table(f"other queues, {way} ({software})", ["", "", "tasks/s", "ratio"], lines)
        yield Figure(
            name=f"peers-{way}",
            source="peers.compared",
            title=f"Other task queues: {way}",
            measured=f"median of {given.rounds} rounds of {given.tasks:,} tasks; {software}",
            unit="tasks/s",
            rows=rows,
        )


def _rows(rates: dict[str, list[tuple[float, float]]], at: int) -> Iterator[Row]:
    """Yield a row for each queue, with its ratio to ours, by whether it works in batches."""
    for batches in (False, True):
        names = [
            name
            for name in rates
            if (PEERS[name].publishes_batches, PEERS[name].handles_batches)[at] == batches
        ]
        ours = "AgentBus, batches" if batches else "AgentBus"
        group = "a call for a batch" if batches else "a call for each task"
        for name in names:
            rounds = [each[at] for each in rates[name]]
            kind, ratio = "ours" if name == ours else "other", None
            if name != ours and ours in rates:
                pairs = zip(rounds, (each[at] for each in rates[ours]), strict=True)
                ratio = percentile([theirs / mine for theirs, mine in pairs], 50)
            yield Row(name, Spread.of(rounds), kind, ratio=ratio, against=ours, group=group)


def _measured(python: str, name: str, server: Server, tasks: int) -> tuple[float, float]:
    """Return how many tasks a second a queue publishes and consumes."""
    script = pathlib.Path(__file__).with_name("_peer.py")
    done = subprocess.run(
        [python, "-I", script, name, server.socket, str(tasks)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-1500:]}")
    rates = json.loads(done.stdout.splitlines()[-1])
    return rates["publish"], rates["consume"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--tasks", type=int, default=10_000, help="tasks a round")
    parser.add_argument("--rounds", type=int, default=5)
    run(compared, parser, SIZES)


if __name__ == "__main__":
    main()
