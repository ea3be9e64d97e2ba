"""How long a lease takes beside 50 and 500 leases of other agents: the server's time, and the caller's.

The baseline is an HSET of a lease's size by a plain connection. The server writes its append-only file to
disk before it answers, as the embedded one does. Half of the leases there are patterns.

    python -m scripts.benchmarks.leases [--rounds N]
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
from collections.abc import Iterator

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server, client

SIZES = {"quick": {"rounds": 20}, "page": {}}
COUNTS = (50, 500)


def fill(bus: agentbus.Bus, count: int) -> None:
    """Have another agent hold so many leases."""
    paths = [
        f"src/module{n}/**/*_{n}.py" if n % 2 else f"src/module{n}/file.py" for n in range(count)
    ]
    for at in range(0, count, 64):
        bus.lease(*paths[at : at + 64], ttl=3600)


def took(bus: agentbus.Bus, server: Server, rounds: int) -> tuple[list[float], list[float]]:
    """Return how long each lease took here, and the mean on the server, in ms."""
    values = []
    server.ask("CONFIG", "RESETSTAT")
    for number in range(rounds):
        began = time.perf_counter()
        bus.lease(f"src/module{number % 50}/other.py")
        values.append((time.perf_counter() - began) * 1000)
        bus.drop_leases()
    said = server.ask("INFO", "commandstats").decode()
    (line,) = [line for line in said.splitlines() if line.startswith("cmdstat_evalsha:")]
    calls, microseconds = (
        int(part.partition("=")[2]) for part in line.partition(":")[2].split(",")[:2]
    )
    # Two scripts a round: to drop reads as many leases, and compares none.
    return values, [microseconds / calls / 1000]


def leasing(given: argparse.Namespace) -> Iterator[Figure]:
    """One script reads all leases, compares each with what is asked for, and writes one."""
    measured: dict[int, tuple[list[float], list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder)) as server,
    ):
        base = []
        with client(server.url) as raw:
            for number in range(given.rounds):
                began = time.perf_counter()
                raw.hset("plain", f"src/module{number % 50}/other.py", "x" * 150)
                base.append((time.perf_counter() - began) * 1000)
        for count in COUNTS:
            with (
                agentbus.connect(server.url, project=f"bench{count}", agent="eve") as eve,
                agentbus.connect(server.url, project=f"bench{count}", agent="ada") as ada,
            ):
                fill(eve, count - 1)
                measured[count] = took(ada, server, given.rounds)
    table(
        f"a lease beside others, {given.rounds} rounds",
        ["leases", "lowest ms", "p50 ms", "p99 ms", "server, mean ms"],
        [
            [name, *(f"{percentile(values, part):.3f}" for part in (0, 50, 99)), mean]
            for name, values, mean in (
                ("HSET", base, ""),
                *(
                    (str(count), values, f"{mean[0]:.3f}")
                    for count, (values, mean) in measured.items()
                ),
            )
        ],
    )
    yield Figure(
        name="leases",
        source="leases.leasing",
        title="A lease beside others",
        measured=f"on one connection, {given.rounds:,} rounds",
        unit="ms",
        better="less",
        rows=(
            Row("HSET", Spread.at(50, base), "baseline"),
            *(
                Row(
                    f"{count} leases",
                    Spread.at(50, values),
                    ratio=percentile(values, 50) / percentile(base, 50),
                    against="HSET",
                )
                for count, (values, _) in measured.items()
            ),
        ),
    )
    yield Figure(
        name="leases-server",
        source="leases.leasing",
        title="The server's time for a lease",
        measured=f"mean of the scripts of {given.rounds:,} rounds, which lease and drop",
        unit="ms",
        better="less",
        rows=tuple(
            Row(f"{count} leases", Spread.once(mean[0])) for count, (_, mean) in measured.items()
        ),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    run(leasing, parser, SIZES)
