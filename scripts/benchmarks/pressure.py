"""How long other clients wait while a verb runs in a project of a million keys.

A second client sends PING after PING, and notes how long each takes: the server runs one command at a time,
so an expensive one holds up everybody. What disturbs the machine does, too: compare with the idle server.

    python -m scripts.benchmarks.pressure [--keys N]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import pty
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import redis

import agentbus
from scripts.benchmarks._figures import Figure, Row, Spread, percentile, run, table
from tests.servers import Server, Shell, client, program

SIZES = {"quick": {"keys": 10_000, "seconds": 2}, "page": {"keys": 200_000}}
PROJECT = "p"
ALLOWED = 20.0
VERBS = {
    "monitor": ["monitor", "--timeout"],
    "health": ["health"],
    "list --flags": ["list", "--flags"],
    "tidy": ["tidy"],
    "clear": ["clear", "--force"],
}


def pinging(path: str, pipe: Connection) -> None:
    """Send PING after PING, and tell at the end of each round how many ms each took."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        while pipe.recv():
            took = []
            while not pipe.poll():
                began = time.perf_counter()
                link.sendall(b"PING\r\n")
                link.recv(64)
                took.append((time.perf_counter() - began) * 1000)
                time.sleep(0.0005)
            pipe.recv()
            pipe.send(took)


def waiting(given: argparse.Namespace) -> Iterator[Figure]:
    """Each verb examines all keys, in pages; other clients wait for a page at most."""
    took: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ab-") as folder,
        Server(pathlib.Path(folder) / "server", "--appendonly", "no") as server,
    ):
        fill(server, given.keys)
        shell = Shell(
            pathlib.Path(folder) / "home",
            {"AGENTBUS_URL": server.url, "AGENTBUS_PROJECT": PROJECT},
        )
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=pinging, args=(server.socket, theirs), daemon=True)
        child.start()
        ours.send(True)
        for name, words in {"idle": [], **VERBS}.items():
            time.sleep(0.2 if words else given.seconds)
            if name == "monitor":
                _on_terminal(shell, *words, str(given.seconds))
            elif words:
                shell.run(*words, timeout=600)
            ours.send(False)
            ours.send(True)
            took[name] = ours.recv()
        child.kill()
        child.join()
    table(
        f"ms that a PING takes beside a verb, {given.keys:,} keys",
        ["", "pings", "p50", "p99", "p99.9", "max", "allowed"],
        [
            [
                name,
                len(each),
                *(f"{percentile(each, part):.2f}" for part in (50, 99, 99.9, 100)),
                ALLOWED,
            ]
            for name, each in took.items()
        ],
    )
    rows = [
        Row(
            name,
            Spread.at(99.9, each),
            *(() if name != "idle" else ("baseline",)),
            wanted="" if name == "idle" else f"≤ {ALLOWED:g} ms",
        )
        for name, each in took.items()
    ]
    yield Figure(
        name="pressure",
        source="pressure.waiting",
        title=f"A PING beside a verb in a project of {given.keys:,} keys, p99.9",
        measured="by a second client, one PING after the other",
        unit="ms",
        better="less",
        rows=tuple(rows),
    )


def fill(server: Server, keys: int) -> None:
    """Make a project of so many keys, with queues whose finished tasks and leftovers can be tidied."""
    link = client(server.url)
    with link.pipeline(transaction=False) as pipe:
        for at in range(keys):
            _key(pipe, at)
            if at % 5000 == 4999:
                pipe.execute()
        for at in range(keys // 5):
            entry = f"{at + 1}-0"
            pipe.hset(f"{PROJECT}:attempts:mail:default:normal", entry, "1")
            pipe.hset(f"{PROJECT}:attempts:mail:cancelled", f"{entry}@mail", "ada")
            pipe.zadd(f"{PROJECT}:attempts:mail:default:normal:due", {entry: at})
            if at % 5000 == 4999:
                pipe.execute()
        pipe.execute()
    link.close()
    with agentbus.connect(server.url, project=PROJECT, agent="ada") as bus:
        for at in range(keys // 1000):
            bus.queue(f"queue-{at}").publish(at)
        queue = bus.queue("mail", bound=keys)
        queue.publish_many(range(keys // 10))
        bus.subscribe("mail", lambda _delivery: None, count=keys // 20).run()


def _key(pipe: redis.client.Pipeline, at: int) -> None:
    kind = at % 10
    if kind < 3:
        pipe.hset(f"{PROJECT}:jot:note-{at}", mapping={"value": "v" * 50, "timestamp": "1"})
        pipe.zadd(f"{PROJECT}:jots", {f"note-{at}": at})
    elif kind < 6:
        name = ("flag", "done", "fence")[kind - 3]
        pipe.set(f"{PROJECT}:{name}:f{at}", "ada @ 2025-11-20T07:00:00Z")
    elif kind < 8:
        pipe.set(f"{PROJECT}:results:q-{at}:default", "1")
    else:
        pipe.set(f"{PROJECT}:seen:mail:k{at}", "x")


def _on_terminal(shell: Shell, *words: str) -> None:
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen([program(), *words], env=shell.environment, stdout=theirs)
        os.close(theirs)
        # The end of a terminal is an error.
        with contextlib.suppress(OSError):
            while screen.read(65536):
                pass
        process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=10)
    run(waiting, parser, SIZES)


if __name__ == "__main__":
    main()
