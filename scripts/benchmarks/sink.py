"""Rows of Spark that become tasks of a queue, against a plain loop that reads the same files.

    python -m scripts.benchmarks.sink [--rows N] [--cores N] [--rounds N]

The rows are tasks of 200 bytes as JSON, in Parquet files. The loop reads them with pyarrow and sends plain
commands in pipelines, from one process; killed and restarted, it would send rows again. The first write of
a session, in which Java is cold, has its own row.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hiredis
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from tests.servers import Server

PROJECT = "bench"
SIZES = {"quick": {"rows": 4000, "rounds": 1}, "page": {"rows": 400_000}}
_FILES = 8
_AT_ONCE = 500


class Pipeline:
    """A connection that sends commands by the hundred, packed and read in C."""

    def __init__(self, server: Server) -> None:
        self._reader = hiredis.Reader()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(server.socket)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """Send commands in one piece and return their replies."""
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 20))
            else:
                replies.append(reply)
        return replies


def by_hand(server: Server, path: str, *, keyed: bool) -> None:
    """Append all rows as plain entries, those with keys if their key is new: the baseline."""
    stream = f"{PROJECT}:q:hand"
    rows = ds.dataset(path).to_table()
    with Pipeline(server) as pipeline:
        for batch in rows.to_batches(_AT_ONCE):
            payloads, keys = batch.column("payload").to_pylist(), batch.column("key").to_pylist()
            if keyed:
                won = pipeline.send(
                    [("SET", f"{PROJECT}:k:{key}", "1", "NX", "EX", 300) for key in keys]
                )
                payloads = [text for text, first in zip(payloads, won, strict=True) if first]
            pipeline.send([("XADD", stream, "*", "payload", text) for text in payloads])


def sinks(given: argparse.Namespace) -> Iterator[Figure]:
    """Rows go in slices of up to 500, each one step that is not repeated when Spark runs a task again.

    A row with a key is one task for as long as the window lasts, in whichever batch it is written.
    The loop with keys loses a row for which it was killed after it took the key.
    """
    from agentbus.pipeline import session

    rows, cores, rounds = given.rows, given.cores, given.rounds
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-bench-"))
    path = str(place / "rows")
    _fill(pathlib.Path(path), rows)
    took: dict[str, list[float]] = {}
    try:
        with Server(place / "server", "--appendonly", "no") as server:
            spark = session(f"local[{cores},4]")
            options = {
                "url": server.url,
                "project": PROJECT,
                "queue": "work",
                "bound": str(2 * rows),
            }

            def save(*columns: str) -> None:
                frame = spark.read.parquet(path).select(*columns)
                frame.write.format("agentbus").options(**options).mode("append").save()

            def stream() -> None:
                source = spark.readStream.schema("payload STRING, key STRING").parquet(path)
                query = source.writeStream.format("agentbus").options(**options)
                query = query.option("checkpointLocation", tempfile.mkdtemp(dir=place))
                query.trigger(availableNow=True).start().awaitTermination()

            measured: dict[str, Callable[[], None]] = {
                "rows": lambda: save("payload"),
                "rows with keys": lambda: save("payload", "key"),
                "a query, rows with keys": stream,
                "plain loop": lambda: by_hand(server, path, keyed=False),
                "plain loop, with keys": lambda: by_hand(server, path, keyed=True),
            }
            took["rows, the session's first"] = [_timed(server, rows, measured["rows"])]
            for _ in range(rounds):
                for name, write in measured.items():
                    took.setdefault(name, []).append(_timed(server, rows, write))
            spark.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    yield _figure(took, rows, cores, rounds)


def _fill(folder: pathlib.Path, rows: int) -> None:
    folder.mkdir()
    for number in range(_FILES):
        mine = range(number * rows // _FILES, (number + 1) * rows // _FILES)
        columns = {
            "payload": [f'{{"n":{n},"body":"{"x" * 180}"}}' for n in mine],
            "key": [f"key-{n}" for n in mine],
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")


def _timed(server: Server, rows: int, write: Callable[[], None]) -> float:
    server.ask("FLUSHALL")
    began = time.perf_counter()
    write()
    seconds = time.perf_counter() - began
    assert server.ask("XLEN", f"{PROJECT}:q:work") + server.ask("XLEN", f"{PROJECT}:q:hand") == rows
    return seconds


def _figure(took: dict[str, list[float]], rows: int, cores: int, rounds: int) -> Figure:
    against = {name: "plain loop, with keys" if "keys" in name else "plain loop" for name in took}
    middle = {name: statistics.median(found) for name, found in took.items()}
    table(
        f"sink, {rows:,} rows, {cores} cores",
        ("what", "seconds", "rows/s", "x plain"),
        [
            (name, f"{spent:.1f}", f"{rows / spent:,.0f}", f"{middle[against[name]] / spent:.2f}")
            for name, spent in middle.items()
        ],
    )
    return Figure(
        name="sink",
        source="sink.sinks",
        title="Rows written to a queue",
        measured=f"{rows:,} rows in {_FILES} files, {cores} cores, median of {rounds} rounds",
        unit="rows/s",
        rows=tuple(
            Row(name, spread, "baseline")
            if name == against[name]
            else Row(
                name, spread, ratio=middle[against[name]] / middle[name], against=against[name]
            )
            for name, spread in (
                (name, Spread.of(rows / seconds for seconds in found))
                for name, found in sorted(took.items(), key=lambda one: "plain" not in one[0])
            )
        ),
    )


def main() -> None:
    """Write as often as was said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    run(sinks, parser, SIZES)


if __name__ == "__main__":
    main()
