"""Other task queues, installed into their own environment and measured on the same server.

Each is used in the fastest way that its documentation shows, on uvloop where its own program uses it, and
is warm when the time is taken. A handler is called for each task, or for a batch where a row says so.
OmniDaemon's pattern is that of its bus: read ten, await a handler for each, acknowledge each. The peers
differ in other features (results, middleware, schedules), and in what they guarantee if a worker dies.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator

from scripts.benchmarks._figures import Figure, Row, Spread, table
from scripts.benchmarks.queue_peer import PEERS
from tests.servers import Server

NEEDS = (
    *("faststream[redis]", "taskiq", "taskiq-redis", "dramatiq[redis]", "celery[redis]", "huey"),
    *("hiredis", "uvloop"),
)

_IN_BATCHES = ("faststream, batches",)


def install(place: pathlib.Path) -> str:
    """Make an environment with the peers in it, and return its Python."""
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *NEEDS], check=True)
    return python


def versions(python: str) -> str:
    """Return which versions were measured."""
    names = (
        *("faststream", "taskiq", "taskiq-redis", "dramatiq", "celery", "huey"),
        *("redis", "hiredis", "uvloop"),
    )
    code = (
        "from importlib.metadata import version as v;"
        f"print(*(n + ' ' + v(n) for n in {names}), sep=', ')"
    )
    return subprocess.run(
        [python, "-I", "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def compared(
    server: Server,
    ours: tuple[Spread, ...] | None,
    count: int,
    rounds: int,
    python: str | None = None,
) -> Iterator[Figure]:
    """The figures of AgentBus are those of `publish_many` and of the worker in the same run.

    What handles batches stands beside what handles batches, and single tasks beside single tasks.
    """
    software, peers = _measured(server, count, rounds, python)
    published = {name: rates[0] for name, rates in peers.items() if name not in _IN_BATCHES}
    singly = {name: rates[1] for name, rates in peers.items() if name not in _IN_BATCHES}
    batches = {name: rates[1] for name, rates in peers.items() if name in _IN_BATCHES}
    mine: tuple[Spread | None, ...] = ours or (None, None, None)
    ways = (
        ("published", "", mine[0], published),
        ("consumed", "a call for each task", mine[1], singly),
        ("consumed", "a call for a batch", mine[2], batches),
    )
    lines, rows = [], {"published": list[Row](), "consumed": list[Row]()}
    for way, group, own, found in ways:
        if own and found:
            best = max(found, key=lambda name: found[name].middle)
            ratio = own.middle / found[best].middle
            rows[way].append(Row("AgentBus", own, ratio=ratio, against=best, group=group))
        rows[way] += [Row(name, spread, "other", group=group) for name, spread in found.items()]
        for name, spread in found.items():
            times = f"{own.middle / spread.middle:.1f}" if own else ""
            lines.append([f"{way}, {group}".rstrip(", "), name, f"{spread.middle:,.0f}", times])
    table(f"other queues ({software})", ["", "", "tasks/s", "agentbus is x"], lines)
    for way, each in rows.items():
        yield Figure(
            name=f"queue-peers-{way}",
            source="queue_peers.compared",
            title=f"Other task queues: {way}",
            measured=f"median of {rounds} rounds of {count:,} tasks; {software}",
            unit="tasks/s",
            rows=tuple(each),
        )


def _measured(
    server: Server, count: int, rounds: int, python: str | None
) -> tuple[str, dict[str, tuple[Spread, Spread]]]:
    """Return versions, and each peer's rates; installs them unless given a Python."""
    script = str(pathlib.Path(__file__).with_name("queue_peer.py"))
    found: dict[str, tuple[Spread, Spread]] = {}
    with tempfile.TemporaryDirectory(prefix="ab-peers-") as folder:
        python = python or install(pathlib.Path(folder))
        for name in PEERS:
            runs = []
            for _ in range(rounds):
                server.ask("FLUSHALL")
                done = subprocess.run(
                    [python, "-I", script, name, server.socket, str(count)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=300,
                )
                if done.returncode:
                    sys.stderr.write(f"{name} failed:\n{done.stderr[-1500:]}\n")
                    break
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            if runs:
                published, consumed = (
                    Spread.of(run[what] for run in runs) for what in ("publish", "consume")
                )
                found[name] = published, consumed
        return versions(python), found
