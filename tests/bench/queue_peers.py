"""Other task queues, installed into an environment of their own and measured on the same server."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import venv

from tests.bench._figures import percentile
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


def measure(
    server: Server, count: int, rounds: int, python: str | None = None
) -> tuple[str, dict[str, tuple[float, float]]]:
    """Return versions, and each peer's medians; installs them unless given a Python."""
    script = str(pathlib.Path(__file__).with_name("queue_peer.py"))
    found: dict[str, tuple[float, float]] = {}
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
                    percentile([run[what] for run in runs], 50) for what in ("publish", "consume")
                )
                found[name] = published, consumed
        return versions(python), found
