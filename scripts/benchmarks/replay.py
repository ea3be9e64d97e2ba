"""Replays of an archive, against a plain loop that keeps no record of its progress.

    python -m scripts.benchmarks.replay [--rows N] [--cores N] [--rounds N]

The rows are tasks of 200 bytes in four streams, and the times those of a clock around each call. The
baseline reads the same files with pyarrow and sends plain XADDs, in pipelines, from one process; killed and
restarted, it would send rows twice. The first replay of a session, in which Java is cold, has its own row,
and so has a process that starts Spark for it.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import hiredis
import pyarrow as pa
import pyarrow.parquet as pq

from agentbus.core.settings import resolve
from agentbus.pipeline.archives.files import archive_files
from agentbus.pipeline.rows import schema
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from tests.pipeline.archives import write_archive
from tests.servers import Server, program

PROJECT = "bench"
SIZES = {"quick": {"rows": 4000, "rounds": 1}, "page": {"rows": 1_000_000}}
_STREAMS = 4
_SLICE = 5000
_FROM_MS = 1_763_600_000_000


def made(stream: str, rows: int) -> pa.Table:
    """Return so many rows of one queue."""
    numbers = range(rows)
    columns: dict[str, Any] = {
        "version": [schema.VERSION] * rows,
        "stream": [stream] * rows,
        "kind": [schema.QUEUE] * rows,
        "id": [f"{_FROM_MS + n // 7}-{n % 7}" for n in numbers],
        "time": [(_FROM_MS + n // 7) * 1000 for n in numbers],
        "seq": [n % 7 for n in numbers],
        "queue": [stream[2:]] * rows,
        "payload": [f'{{"n":{n},"body":"{"x" * 180}"}}' for n in numbers],
        "fields": [[]] * rows,
    }
    none = [None] * rows
    arrays = [pa.array(columns.get(field.name, none), field.type) for field in schema.ARROW]
    return pa.Table.from_arrays(arrays, schema=schema.ARROW)


def by_hand(server: Server, path: str) -> None:
    """Send all rows as plain entries: the baseline."""
    reader = hiredis.Reader()
    parts = [pq.read_table(file, columns=["id", "payload"]) for file in archive_files(path)]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(server.socket)
        for batch in pa.concat_tables(parts).to_batches(_SLICE):
            payloads = batch.column("payload").to_pylist()
            packed = [
                hiredis.pack_command(("XADD", f"{PROJECT}:q:again", "*", "payload", str(text)))
                for text in payloads
            ]
            sock.sendall(b"".join(packed))
            number = len(payloads)
            while number:
                if reader.gets() is False:
                    reader.feed(sock.recv(1 << 20))
                else:
                    number -= 1


def replays(given: argparse.Namespace) -> Iterator[Figure]:
    """Each request publishes some rows and moves the replay's cursor of that stream, in one step.

    A replay that is killed or run twice therefore continues where it was; the plain loop must not be
    killed or restarted.
    """
    from agentbus.pipeline import replay, session

    rows, cores, rounds = given.rows, given.cores, given.rounds
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-bench-"))
    path, config = str(place / "archive"), place / "config.yaml"
    config.write_text(f"queues:\n  '*':\n    bound: {10 * rows}\n")
    try:
        for number in range(_STREAMS):
            write_archive(path, made(f"q:work-{number}", rows // _STREAMS), PROJECT)
        with Server(place / "server", "--appendonly", "no") as server:
            settings = resolve({"url": server.url, "project": PROJECT, "config": str(config)})
            words = [
                *(program(), "replay", path, "--to-queue", "again", "--url", server.url),
                *("--project", PROJECT, "--config", str(config), "--master", f"local[{cores},4]"),
            ]
            cold = _timed(
                server, rows, lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            )
            spark = session(f"local[{cores},4]")
            ours, plain = [], []
            for number in range(rounds + 1):
                again = partial(
                    replay, spark, path, settings, queue="again", replay_id=f"r{number}"
                )
                ours.append(_timed(server, rows, again))
                plain.append(_timed(server, rows, lambda: by_hand(server, path)))
            spark.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    hand = statistics.median(plain)
    base = "plain loop, at least once"
    found = {
        "replay, warm": ours[1:],
        "replay, the session's first": ours[:1],
        "agentbus replay, its start included": [cold],
    }
    table(
        f"replay, {rows:,} rows, {cores} cores",
        ("what", "seconds", "rows/s", "x plain"),
        [
            (name, f"{took:.1f}", f"{rows / took:,.0f}", f"{hand / took:.2f}")
            for name, took in [
                *((name, statistics.median(times)) for name, times in found.items()),
                (base, hand),
            ]
        ],
    )
    yield Figure(
        name="replay",
        source="replay.replays",
        title="Rows replayed",
        measured=f"{rows:,} rows of {_STREAMS} streams, {cores} cores, median of {rounds} rounds",
        unit="rows/s",
        rows=(
            Row(base, Spread.of(rows / took for took in plain), "baseline"),
            *(
                Row(
                    name,
                    Spread.of(rows / took for took in times),
                    ratio=hand / statistics.median(times),
                    against=base,
                )
                for name, times in found.items()
            ),
        ),
    )


def _timed(server: Server, rows: int, work: Callable[[], object]) -> float:
    """Return how long it takes to fill the queue, in seconds."""
    key = f"{PROJECT}:q:again"
    server.ask("DEL", key)
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    assert server.ask("XLEN", key) == rows
    return took


def main() -> None:
    """Replay as often as was said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    run(replays, parser, SIZES)


if __name__ == "__main__":
    main()
