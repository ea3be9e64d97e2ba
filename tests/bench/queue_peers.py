"""Other task queues, installed into their own environment and measured on the same server.

Each is used in the fastest way that its documentation shows, with one handler call per task. OmniDaemon's
pattern is that of its bus: read ten, await a handler for each, acknowledge each. The libraries differ in
their other features (results, middleware, schedules) and in what they guarantee when a worker dies.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator

from tests.bench._figures import Figure, Row, Spread, table
from tests.bench.queue_peer import PEERS
from tests.servers import Server

NEEDS = ("faststream[redis]", "taskiq", "taskiq-redis", "dramatiq[redis]", "hiredis")


def install(place: pathlib.Path) -> str:
    """Make an environment with the peers in it, and return its Python."""
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *NEEDS], check=True)
    return python


def versions(python: str) -> str:
    """Return which versions were measured."""
    names = ("faststream", "taskiq", "taskiq-redis", "dramatiq", "redis", "hiredis")
    code = (
        "from importlib.metadata import version as v;"
        f"print(*(n + ' ' + v(n) for n in {names}), sep=', ')"
    )
    return subprocess.run(
        [python, "-I", "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def compared(
    server: Server,
    ours: tuple[Spread, Spread] | None,
    count: int,
    rounds: int,
    python: str | None = None,
) -> Iterator[Figure]:
    """The figures of AgentBus are those of `publish_many` and of the worker in the same run."""
    software, peers = _measured(server, count, rounds, python)
    mine = [one.middle for one in ours] if ours else [0.0, 0.0]
    lines = [
        [
            *(name, f"{a.middle:,.0f}", f"{mine[0] / a.middle:.1f}"),
            *(f"{b.middle:,.0f}", f"{mine[1] / b.middle:.1f}"),
        ]
        for name, (a, b) in peers.items()
    ]
    head = ["", "published/s", "agentbus is x", "consumed/s", "agentbus is x"]
    table(f"other queues, a handler call for each task ({software})", head, lines)
    for number, way in enumerate(("published", "consumed")):
        found = {name: spreads[number] for name, spreads in peers.items()}
        rows = [Row(name, spread, "other") for name, spread in found.items()]
        if ours and found:
            best = max(found, key=lambda name: found[name].middle)
            ratio = mine[number] / found[best].middle
            rows.insert(0, Row("AgentBus", ours[number], ratio=ratio, against=best))
        yield Figure(
            name=f"queue-peers-{way}",
            source="queue_peers.compared",
            title=f"Other task queues: {way}",
            measured=f"median of {rounds} rounds of {count:,} tasks; {software}",
            unit="tasks/s",
            rows=tuple(rows),
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
