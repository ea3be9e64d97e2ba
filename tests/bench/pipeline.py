"""How fast the pipeline archives, replays and reports, beside what one would write by hand.

    python -m tests.bench.pipeline [archive] [cold] [rows] [streams] [cores] [sizes]

Every figure is a ratio to a baseline of the same run. The rows are tasks of 200 bytes. (a) is a plain
Python loop: XRANGE, pyarrow, Parquet. (b) is Spark itself, which reads the archived rows from Parquet
and writes them again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import pyarrow as pa
import pyarrow.parquet as pq
import redis

from agentbus.settings import resolve
from tests.bench._figures import table
from tests.servers import Server

PROJECT = "bench"
_SLICE = 5000


Payload = Callable[[int], str]


def ordinary(n: int) -> str:
    """Return a payload of 200 bytes, three quarters of which no compression finds anything in."""
    body = json.dumps({"n": n, "to": f"agent-{n % 50}", "text": os.urandom(75).hex()})
    return body[:198] + '"}'


def fill(server: Server, stream: str, rows: int, payload: Payload = ordinary) -> None:
    """Add so many tasks."""
    reader = hiredis.Reader()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(server.socket)
        for at in range(0, rows, _SLICE):
            number = min(_SLICE, rows - at)
            out = []
            for n in range(at, at + number):
                words = ("XADD", f"{PROJECT}:{stream}", "*", "payload", payload(n))
                out.append(hiredis.pack_command(words))
            sock.sendall(b"".join(out))
            while number:
                if reader.gets() is False:
                    reader.feed(sock.recv(1 << 20))
                else:
                    number -= 1


def plain(server: Server, streams: list[str], place: pathlib.Path) -> int:
    """Copy streams to one Parquet file as a careful engineer would by hand: the baseline (a)."""
    connection = redis.Redis(unix_socket_path=server.socket).connection_pool.get_connection()
    schema = pa.schema(
        [
            ("stream", pa.string()),
            ("id", pa.string()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("payload", pa.string()),
        ]
    )
    total = 0
    with pq.ParquetWriter(place, schema, compression="zstd") as writer:
        for stream in streams:
            after = "-"
            while True:
                words = ("XRANGE", f"{PROJECT}:{stream}", after, "+", "COUNT", 10_000)
                connection.send_command(*words)
                page = connection.read_response()
                if not page:
                    break
                ids = [entry[0].decode() for entry in page]
                moments = [int(entry_id.partition("-")[0]) * 1000 for entry_id in ids]
                payloads = [entry[1][1].decode() for entry in page]
                columns = {
                    "stream": [stream] * len(ids),
                    "id": ids,
                    "time": pa.array(moments, pa.timestamp("us", tz="UTC")),
                    "payload": payloads,
                }
                writer.write_table(pa.table(columns, schema=schema))
                total += len(ids)
                after = f"({ids[-1]}"
    return total


def timed(work: Callable[..., Any], *args: Any) -> float:
    """Return how long something takes, in seconds."""
    began = time.perf_counter()
    work(*args)
    return time.perf_counter() - began


@contextmanager
def served() -> Iterator[tuple[Server, pathlib.Path]]:
    """Run a server that keeps nothing on disk, and a directory."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-bench-"))
    try:
        with Server(place / "server", "--appendonly", "no") as server:
            yield server, place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Bench:
    """A server, a directory, and a Spark session that is warm."""

    def __init__(self, server: Server, place: pathlib.Path, cores: int) -> None:
        from agentbus.pipeline import session

        self.server = server
        self.place = place
        began = time.perf_counter()
        self.spark = session(f"local[{cores},4]")
        self.started = time.perf_counter() - began
        self._number = 0

    def path(self, name: str) -> pathlib.Path:
        """Return a path that was not used before."""
        self._number += 1
        return self.place / f"{name}-{self._number}"

    def archive(self, path: pathlib.Path) -> int:
        """Archive all that is new."""
        from agentbus.pipeline.archiving import Archiver

        rounds: list[Any] = []
        with Archiver(self.spark, settings(self.server), str(path)) as archiver:
            archiver.run(on_round=rounds.append)
        return sum(done.rows for done in rounds)

    def rewrite(self, path: pathlib.Path) -> int:
        """Read the archived rows with Spark, and write them again: the baseline (b)."""
        frame = self.spark.read.parquet(f"file://{path}")
        frame.write.parquet(f"file://{self.path('again')}")
        return 0


def settings(server: Server) -> Any:
    """Return the settings of a bus on the server."""
    return resolve({"url": server.url, "project": PROJECT})


def rate(rows: int, seconds: float) -> str:
    """Write rows a second."""
    return f"{rows / seconds:,.0f}"


def archive(rows: int, cores: int, rounds: int = 5) -> None:
    """Archive in steady state: the session is warm, and the stream long-lived."""
    with served() as (server, place):
        bench = Bench(server, place, cores)
        fill(server, "q:work", rows)
        for _ in range(3):
            bench.archive(bench.path("warm"))
        ours, by_hand, again = [], [], []
        for _ in range(rounds):
            by_hand.append(timed(plain, server, ["q:work"], bench.path("plain")))
            path = bench.path("archive")
            ours.append(timed(bench.archive, path))
            again.append(timed(bench.rewrite, path))
        ratios = [hand / own for hand, own in zip(by_hand, ours, strict=True)]
        others = [spark / own for spark, own in zip(again, ours, strict=True)]
        lines = [
            ("archive", rate(rows, statistics.median(ours)), ""),
            *(
                (name, rate(rows, statistics.median(found)), f"{statistics.median(part):.2f}")
                for name, found, part in (
                    ("(a) plain Python", by_hand, ratios),
                    ("(b) Spark rewrites", again, others),
                )
            ),
        ]
        table(
            f"steady state, {rows:,} rows, {cores} cores; the session started in {bench.started:.1f} s",
            ("what", "rows/s", "archive is x"),
            lines,
        )
        bench.spark.stop()


def cold(rows: int, cores: int) -> None:
    """Archive by a fresh `agentbus archive`, its start included."""
    with served() as (server, place):
        fill(server, "q:work", rows)
        by_hand = timed(plain, server, ["q:work"], place / "plain.parquet")
        words = [
            *(sys.executable, str(pathlib.Path(sys.executable).parent / "agentbus")),
            *("archive", str(place / "archive"), "--url", server.url, "--project", PROJECT),
            *("--master", f"local[{cores},4]"),
        ]
        ours = timed(_run, words)
        table(
            f"a cold process, {rows:,} rows, {cores} cores",
            ("what", "rows/s", "archive is x"),
            [
                ("archive, start included", rate(rows, ours), ""),
                ("(a) plain Python", rate(rows, by_hand), f"{by_hand / ours:.2f}"),
            ],
        )


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def growth(sizes: list[int], cores: int) -> None:
    """Archive streams of growing length: what a row costs should stay the same."""
    lines = []
    with served() as (server, place):
        bench = Bench(server, place, cores)
        fill(server, "q:work", sizes[0])
        for _ in range(3):
            bench.archive(bench.path("warm"))
        there = sizes[0]
        for rows in sizes:
            fill(server, "q:work", rows - there)
            there = rows
            took = statistics.median(timed(bench.archive, bench.path("archive")) for _ in range(3))
            hand = timed(plain, server, ["q:work"], bench.path("plain"))
            lines.append(
                (f"{rows:,}", f"{took / rows * 1e6:.2f}", rate(rows, took), f"{hand / took:.2f}")
            )
        bench.spark.stop()
    table("cost by rows", ("rows", "µs a row", "rows/s", "x (a)"), lines)


def streams(rows: int, numbers: list[int], cores: int) -> None:
    """Archive the same number of rows from more and more streams."""
    lines = []
    for number in numbers:
        with served() as (server, place):
            bench = Bench(server, place, cores)
            names = [f"q:work-{n}" for n in range(number)]
            for name in names:
                fill(server, name, rows // number)
            for _ in range(3):
                bench.archive(bench.path("warm"))
            took = statistics.median(timed(bench.archive, bench.path("archive")) for _ in range(3))
            hand = timed(plain, server, names, bench.path("plain"))
            lines.append(
                (number, f"{took / rows * 1e6:.2f}", rate(rows, took), f"{hand / took:.2f}")
            )
            bench.spark.stop()
    table(f"cost by streams, {rows:,} rows", ("streams", "µs a row", "rows/s", "x (a)"), lines)


def by_cores(rows: int) -> None:
    """Archive with one core and with two; each in a process of its own."""
    found = {}
    with served() as (server, place):
        fill(server, "q:work", rows)
        for cores in (1, 2):
            script = (
                "import sys, statistics, pathlib; from tests.bench.pipeline import *\n"
                "class S: pass\n"
                f"s = S(); s.url = {server.url!r}; s.socket = {server.socket!r}\n"
                f"b = Bench(s, pathlib.Path({str(place)!r}) / '{cores}', {cores})\n"
                "for _ in range(3): b.archive(b.path('warm'))\n"
                "print(statistics.median(timed(b.archive, b.path('a')) for _ in range(5)))\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", script], check=True, capture_output=True, text=True
            )
            found[cores] = float(done.stdout.split()[-1])
    table(
        f"cost by cores, {rows:,} rows",
        ("cores", "rows/s", "x one core"),
        [(n, rate(rows, took), f"{found[1] / took:.2f}") for n, took in found.items()],
    )


def sizes(rows: int, cores: int) -> None:
    """Tell what a row takes in the archive and in the server, by what it says."""
    words = [random.Random(1).choice(string.ascii_lowercase) * (2 + n % 7) for n in range(400)]
    words = [
        "".join(random.Random(word + str(n)).sample(string.ascii_lowercase, len(word)))
        for n, word in enumerate(words)
    ]
    states = ("new", "paid", "packed", "sent", "returned")

    def text(n: int) -> str:
        return json.dumps({"text": " ".join(random.Random(n).choices(words, k=27))})

    def record(n: int) -> str:
        chance = random.Random(n)
        order = {"order": 100_000 + n, "state": chance.choice(states), "amount": n % 97 * 100}
        order |= {
            "customer": f"customer-{chance.randrange(500)}",
            "currency": "EUR",
            "items": n % 5,
        }
        return json.dumps(
            order | {"warehouse": f"north-{n % 4}", "note": "please leave it at the door"}
        )

    payloads: dict[str, Payload] = {
        "random digits": lambda n: json.dumps({"n": n, "text": os.urandom(86).hex()}),
        "words of a text": text,
        "records": record,
        "nearly the same": lambda n: json.dumps({"n": n, "text": "the build is done " * 8}),
    }
    lines = []
    with served() as (server, place):
        bench = Bench(server, place, cores)
        for name, payload in payloads.items():
            server.ask("FLUSHALL")
            fill(server, "q:work", rows, payload)
            path = bench.path("archive")
            assert bench.archive(path) == rows
            there = sum(file.stat().st_size for file in path.glob("kind=*/**/*.parquet"))
            held = server.ask("MEMORY", "USAGE", f"{PROJECT}:q:work", "SAMPLES", 0)
            long = sum(len(payload(n)) for n in range(1000)) / 1000
            lines.append((name, f"{long:.0f}", f"{there / rows:.0f}", f"{held / rows:.0f}"))
        bench.spark.stop()
    table(f"bytes a row, {rows:,} rows", ("payload", "its own", "archived", "in the server"), lines)


def main() -> None:
    """Run what was named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--most", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    benches: dict[str, Callable[[], None]] = {
        "archive": lambda: archive(args.rows, args.cores),
        "cold": lambda: cold(args.most, args.cores),
        "rows": lambda: growth([args.rows, args.rows * 3, args.most], args.cores),
        "streams": lambda: streams(args.rows, [1, 10, 100, 1000], args.cores),
        "cores": lambda: by_cores(args.rows),
        "sizes": lambda: sizes(args.rows // 10, args.cores),
    }
    for name in args.what or benches:
        benches[name]()


if __name__ == "__main__":
    main()
