"""The archiver, against a hand-written loop and against Spark itself.

    python -m scripts.benchmarks.pipeline [archive] [cold] [rows] [streams] [cores] [sizes]

Every figure is a ratio to a baseline of the same run. The rows are tasks of 200 bytes. (a) is a plain
Python loop: XRANGE, pyarrow, Parquet, in one process. (b) is the same by who knows the tools: hiredis on a
socket, columns of bytes, the next page requested ahead. (c) is Spark itself, which reads the archived rows
from Parquet and writes them again. A session takes some seconds to start, which only the cold process pays.
[Pipeline](pipeline.md) explains the design.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from agentbus.core.settings import resolve
from agentbus.pipeline.archives.files import archive_files
from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from scripts.benchmarks._streams import PROJECT, Payload, fill, overlapped, plain, served
from tests.servers import Server, program

SIZES = {
    "quick": {"rows": 5000, "most": 15_000, "rounds": 1, "streams": [1, 10]},
    "page": {"rows": 1_000_000, "most": 10_000_000},
}
_BY_HAND = "(a) plain Python"
_BETTER = "(b) hiredis, a page ahead"
_REWRITES = "(c) Spark rewrites"


def timed(work: Callable[..., Any], *args: Any) -> float:
    """Return how long something takes, in seconds."""
    began = time.perf_counter()
    work(*args)
    return time.perf_counter() - began


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
        from agentbus.pipeline.archives.archiver import Archiver

        rounds: list[Any] = []
        with Archiver(self.spark, settings(self.server), str(path)) as archiver:
            archiver.run(on_round=rounds.append)
        return sum(done.rows for done in rounds)

    def warm(self) -> None:
        """Archive until Java is warm."""
        for _ in range(3):
            self.archive(self.path("warm"))

    def beside(self, names: list[str]) -> tuple[list[float], float]:
        """Return the seconds that the archiver takes, three times, and those by hand."""
        took = [timed(self.archive, self.path("archive")) for _ in range(3)]
        return took, timed(plain, self.server, names, self.path("plain"))

    def rewrite(self, path: pathlib.Path) -> int:
        """Read the archived rows with Spark, and write them again: the baseline (c)."""
        frame = self.spark.read.parquet(*(f"file://{file}" for file in archive_files(path)))
        frame.write.parquet(f"file://{self.path('again')}")
        return 0


def settings(server: Server) -> Any:
    """Return the settings of a bus on the server."""
    return resolve({"url": server.url, "project": PROJECT})


def rate(rows: int, seconds: float) -> str:
    """Write rows a second."""
    return f"{rows / seconds:,.0f}"


def archive(rows: int, cores: int, rounds: int = 5) -> Iterator[Figure]:
    """The steady state: a warm session and a long-lived stream."""
    with served() as (server, place):
        bench = Bench(server, place, cores)
        fill(server, "q:work", rows)
        bench.warm()
        ours, by_hand, better, again = [], [], [], []
        for _ in range(rounds):
            by_hand.append(timed(plain, server, ["q:work"], bench.path("plain")))
            better.append(timed(overlapped, server, ["q:work"], bench.path("overlapped")))
            path = bench.path("archive")
            ours.append(timed(bench.archive, path))
            again.append(timed(bench.rewrite, path))
        bench.spark.stop()
    others = {
        name: (found, [other / own for other, own in zip(found, ours, strict=True)])
        for name, found in ((_BY_HAND, by_hand), (_BETTER, better), (_REWRITES, again))
    }
    table(
        f"steady state, {rows:,} rows, {cores} cores; the session started in {bench.started:.1f} s",
        ("what", "rows/s", "archive is x"),
        [
            ("archive", rate(rows, statistics.median(ours)), ""),
            *(
                (name, rate(rows, statistics.median(found)), f"{statistics.median(part):.2f}")
                for name, (found, part) in others.items()
            ),
        ],
    )
    yield Figure(
        name="archive",
        source="pipeline.archive",
        title="Rows archived, warm",
        measured=f"{rows:,} rows of one stream, {cores} cores, median of {rounds} rounds",
        unit="rows/s",
        rows=(
            Row(_BETTER, Spread.of(rows / took for took in better), "baseline"),
            Row(
                "the archiver",
                Spread.of(rows / took for took in ours),
                ratio=statistics.median(others[_BETTER][1]),
                against=_BETTER,
            ),
            *(
                Row(
                    name,
                    Spread.of(rows / took for took in found),
                    "other",
                    ratio=statistics.median(better) / statistics.median(found),
                    against=_BETTER,
                )
                for name, found in ((_BY_HAND, by_hand), (_REWRITES, again))
            ),
        ),
    )


def cold(rows: int, cores: int) -> Iterator[Figure]:
    """A fresh `agentbus archive`, its start and Spark's included."""
    with served() as (server, place):
        fill(server, "q:work", rows)
        by_hand = timed(plain, server, ["q:work"], place / "plain.parquet")
        better = timed(overlapped, server, ["q:work"], place / "overlapped.parquet")
        words = [
            program(),
            *("archive", str(place / "archive"), "--url", server.url, "--project", PROJECT),
            *("--master", f"local[{cores},4]"),
        ]
        ours = timed(_run, words)
    table(
        f"a cold process, {rows:,} rows, {cores} cores",
        ("what", "rows/s", "archive is x"),
        [
            ("archive, start included", rate(rows, ours), ""),
            (_BY_HAND, rate(rows, by_hand), f"{by_hand / ours:.2f}"),
            (_BETTER, rate(rows, better), f"{better / ours:.2f}"),
        ],
    )
    yield Figure(
        name="archive-cold",
        source="pipeline.cold",
        title="Rows archived by a cold process",
        measured=f"{rows:,} rows of one stream, {cores} cores, once",
        unit="rows/s",
        rows=(
            Row(_BETTER, Spread.once(rows / better), "baseline"),
            Row(
                "agentbus archive",
                Spread.once(rows / ours),
                ratio=better / ours,
                against=_BETTER,
            ),
            Row(
                _BY_HAND,
                Spread.once(rows / by_hand),
                "other",
                ratio=better / by_hand,
                against=_BETTER,
            ),
        ),
    )


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def growth(sizes: list[int], cores: int) -> Iterator[Figure]:
    """Streams of growing length; the cost per row should stay the same."""
    found = {}
    with served() as (server, place):
        bench = Bench(server, place, cores)
        fill(server, "q:work", sizes[0])
        bench.warm()
        there = sizes[0]
        for rows in sizes:
            fill(server, "q:work", rows - there)
            there = rows
            found[f"{rows:,}"] = rows, *bench.beside(["q:work"])
        bench.spark.stop()
    yield _costs("rows", "cost by rows", cores, found)


def streams(rows: int, numbers: list[int], cores: int) -> Iterator[Figure]:
    """The same number of rows, spread over more and more streams."""
    found = {}
    for number in numbers:
        with served() as (server, place):
            bench = Bench(server, place, cores)
            names = [f"q:work-{n}" for n in range(number)]
            for name in names:
                fill(server, name, rows // number)
            bench.warm()
            found[f"{number:,}"] = rows, *bench.beside(names)
            bench.spark.stop()
    yield _costs("streams", f"cost by streams, {rows:,} rows", cores, found)


def _costs(
    by: str, title: str, cores: int, found: dict[str, tuple[int, list[float], float]]
) -> Figure:
    """Print and return what a row costs."""
    lines, data = [], []
    for name, (rows, times, hand) in found.items():
        took = statistics.median(times)
        lines.append((name, f"{took / rows * 1e6:.2f}", rate(rows, took), f"{hand / took:.2f}"))
        group = f"{name} {by}"
        data.append(Row(_BY_HAND, Spread.once(hand / rows * 1e6), "baseline", group=group))
        spread = Spread.of(each / rows * 1e6 for each in times)
        data.append(Row("the archiver", spread, ratio=took / hand, against=_BY_HAND, group=group))
    table(title, (by, "µs a row", "rows/s", "x (a)"), lines)
    return Figure(
        name=f"archive-{by}",
        source=f"pipeline.{'growth' if by == 'rows' else by}",
        title=f"What a row costs, by {by}",
        measured=f"warm, {cores} cores, median of {len(times)} rounds",
        unit="µs",
        better="less",
        rows=tuple(data),
    )


def by_cores(rows: int) -> Iterator[Figure]:
    """One core and two; each in its own process."""
    found = {}
    with served() as (server, place):
        fill(server, "q:work", rows)
        for cores in (1, 2):
            script = (
                "import sys, json, pathlib; from scripts.benchmarks.pipeline import *\n"
                "class S: pass\n"
                f"s = S(); s.url = {server.url!r}; s.socket = {server.socket!r}\n"
                f"b = Bench(s, pathlib.Path({str(place)!r}) / '{cores}', {cores})\n"
                "b.warm()\n"
                "print(json.dumps([timed(b.archive, b.path('a')) for _ in range(5)]))\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", script], check=True, capture_output=True, text=True
            )
            found[cores] = json.loads(done.stdout.splitlines()[-1])
    middle = {cores: statistics.median(times) for cores, times in found.items()}
    table(
        f"cost by cores, {rows:,} rows",
        ("cores", "rows/s", "x one core"),
        [(n, rate(rows, took), f"{middle[1] / took:.2f}") for n, took in middle.items()],
    )
    one, two = (Spread.of(rows / took for took in found[cores]) for cores in (1, 2))
    yield Figure(
        name="archive-cores",
        source="pipeline.by_cores",
        title="Rows archived, by cores",
        measured=f"{rows:,} rows of one stream, warm, median of {len(found[1])} rounds",
        unit="rows/s",
        rows=(
            Row("1 core", one, "baseline"),
            Row("2 cores", two, ratio=middle[1] / middle[2], against="1 core"),
        ),
    )


def sizes(rows: int, cores: int) -> Iterator[Figure]:
    """The size of a row depends on its content more than on its length."""
    found = {}
    with served() as (server, place):
        bench = Bench(server, place, cores)
        for name, payload in payloads().items():
            server.ask("FLUSHALL")
            fill(server, "q:work", rows, payload)
            path = bench.path("archive")
            assert bench.archive(path) == rows
            there = sum(pathlib.Path(file).stat().st_size for file in archive_files(path))
            held = server.ask("MEMORY", "USAGE", f"{PROJECT}:q:work", "SAMPLES", 0)
            long = sum(len(payload(n)) for n in range(1000)) / 1000
            found[name] = long, there / rows, held / rows
        bench.spark.stop()
    table(
        f"bytes a row, {rows:,} rows",
        ("payload", "its own", "archived", "in the server"),
        [(name, *(f"{size:.0f}" for size in each)) for name, each in found.items()],
    )
    data: list[Row] = []
    for name, (own, archived, held) in found.items():
        data.append(Row("its payload", Spread.once(own), "baseline", group=name))
        for where, size in (("archived", archived), ("in the server", held)):
            data.append(
                Row(where, Spread.once(size), ratio=size / own, against="its payload", group=name)
            )
    yield Figure(
        name="archive-bytes",
        source="pipeline.sizes",
        title="What a row takes, by what it says",
        measured=f"{rows:,} tasks each, Parquet with zstd, before compaction",
        unit="bytes",
        better="less",
        rows=tuple(data),
    )


def payloads() -> dict[str, Payload]:
    """Return payloads in which there is nothing, little and much to be found for a compression."""
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

    return {
        "random digits": lambda n: json.dumps({"n": n, "text": os.urandom(86).hex()}),
        "words of a text": text,
        "records": record,
        "nearly the same": lambda n: json.dumps({"n": n, "text": "the build is done " * 8}),
    }


def measured(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure what was named, or all."""
    rows, cores = given.rows, given.cores
    benches: dict[str, Callable[[], Iterator[Figure]]] = {
        "archive": lambda: archive(rows, cores, given.rounds),
        "cold": lambda: cold(given.most, cores),
        "rows": lambda: growth(sorted({rows, min(rows * 3, given.most), given.most}), cores),
        "streams": lambda: streams(rows, given.streams, cores),
        "cores": lambda: by_cores(rows),
        "sizes": lambda: sizes(rows // 10, cores),
    }
    for name in given.what or benches:
        yield from benches[name]()


def main() -> None:
    """Run what was named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--most", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 10, 100, 1000])
    run(measured, parser, SIZES)


if __name__ == "__main__":
    main()
