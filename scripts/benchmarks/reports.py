"""Time and memory of all reports over an archive, against one pass over the same rows.

    python -m scripts.benchmarks.reports [--rows N] [--cores N] [--only raw|compacted]

The baseline is one pass of Spark over the archive that reads every column of every row. Each part runs in
its own process, started cold; Spark's start has its own row. Memory is the sum of the peaks of
Java and of each Python process. Commands count from their start to their end, with Spark's classes stored
(`agentbus spark --prepare`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from scripts.benchmarks._figures import Figure, Row, Spread, run, table
from tests.servers import Server, program, scrubbed

PROJECT = "bench"
_FULL, _FEW, _ROUNDS = 10_000_000, 100, 5
COMMAND = "agentbus report all, its start included"
SIZES = {"quick": {"rows": 20_000}, "page": {"rows": 1_500_000}}


class Memory:
    """Adds up the most memory that a process (this one), and each below it, ever held."""

    def __init__(self, root: int | None = None) -> None:
        self._root = root or os.getpid()
        self._most: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def most(self) -> int:
        """Return the sum in bytes."""
        return sum(self._most.values())

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            # One that has just ended holds nothing any more.
            held = {pid: _held(pid) for pid in _family(self._root)}
            self._most |= {pid: most for pid, most in held.items() if most}


def _family(root: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += parents.get(pid, [])
    return found


def _held(pid: int) -> int:
    """Return how many bytes a process held at most."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def opened(cores: int) -> Iterator[tuple[Any, float]]:
    """Open Spark; yield it with how long that took."""
    from agentbus.pipeline import session

    began = time.perf_counter()
    spark = session(f"local[{cores},4]")
    yield spark, time.perf_counter() - began
    spark.stop()


def measured(path: str, cores: int, what: str) -> dict[str, float]:
    """Make all reports, or pass once over all rows, in this process."""
    from pyspark.sql import functions as f

    from agentbus.pipeline.archives import reader as archived
    from agentbus.pipeline.reports import NAMES, running

    with Memory() as memory, opened(cores) as (spark, started):
        rows = archived.read(spark, path, marked=True)
        began = time.perf_counter()
        if what == "reports":
            running.run(list(NAMES), rows)
        else:
            columns = [
                f.map_entries(f.col(name)) if name == "fields" else f.col(name)
                for name in rows.columns
            ]
            rows.agg(f.sum(f.xxhash64(*columns).cast("double"))).collect()
        took = time.perf_counter() - began
    return {"seconds": took, "started": started, "gigabytes": memory.most / 1e9}


def _made(path: str, rows: int) -> None:
    from tests.pipeline.archives import write_archive
    from tests.pipeline.histories import chunks

    write_archive(path, chunks(rows), project=PROJECT)


def _compacted(path: str, cores: int) -> float:
    from agentbus.pipeline import compact

    with opened(cores) as (spark, _):
        began = time.perf_counter()
        compact(spark, path, before="2027-01-01")
        return time.perf_counter() - began


def _apart(path: str, cores: int, what: str) -> dict[str, float]:
    """Measure in its own process."""
    words = [sys.executable, "-m", "scripts.benchmarks.reports", "--measure", what]
    words += ["--path", path, "--cores", str(cores)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def commanded(*words: str) -> dict[str, float]:
    """Run `agentbus` with these words, and return how long it took and how much memory it held."""
    began = time.perf_counter()
    with subprocess.Popen(
        [program(), *words], env=scrubbed({**os.environ}), stdout=subprocess.DEVNULL
    ) as child:
        with Memory(child.pid) as memory:
            code = child.wait()
            took = time.perf_counter() - began
    assert code == 0, words
    return {"seconds": took, "gigabytes": memory.most / 1e9}


def commands(given: argparse.Namespace) -> Iterator[Figure]:
    """Commands that have little to do: a report on few rows, and an archiver that finds nothing new."""
    master = ("--master", f"local[{given.cores},4]")
    with tempfile.TemporaryDirectory(prefix="agentbus-bench-") as place:
        few, path = f"{place}/few", f"{place}/archive"
        _made(few, _FEW)
        reports = [commanded("report", "all", few, *master)["seconds"] for _ in range(3)]
        with Server(pathlib.Path(place, "server")) as server:
            bus = ("--url", server.url, "--project", PROJECT)
            commanded("speak", "hello", "--agent", "ada", *bus)
            commanded("archive", path, *bus, *master)
            nothing = [commanded("archive", path, *bus, *master)["seconds"] for _ in range(_ROUNDS)]
    rows = (
        (f"report all, {_FEW} rows", reports, "≤ 8"),
        ("archive, nothing new", nothing, "≤ 0.5"),
    )
    table(
        "commands, their start included",
        ("what", "seconds", "wanted"),
        [(what, f"{statistics.median(times):.2f}", wanted) for what, times, wanted in rows],
    )
    yield Figure(
        "reports-commands",
        "reports.commands",
        "Commands with little to do",
        f"their start included, {given.cores} cores, median of {len(reports)} and {_ROUNDS} runs",
        "s",
        tuple(Row(what, Spread.of(times), wanted=wanted) for what, times, wanted in rows),
        "less",
    )


def measure(given: argparse.Namespace) -> Iterator[Figure]:
    """Measure all parts."""
    commanded("spark", "--prepare")
    yield from reported(given)
    yield from commands(given)


def reported(given: argparse.Namespace) -> Iterator[Figure]:
    """All reports over an archive as written, and after compaction, which runs at night.

    Intermediate results that several tables share are computed once, per hour and not per entry.
    """
    rows, cores = given.rows, given.cores
    place = pathlib.Path(tempfile.mkdtemp(prefix="agentbus-bench-"))
    path = str(place / "archive")
    lines: list[tuple[str, ...]] = []
    found: dict[str, dict[str, dict[str, float]]] = {}
    compaction = 0.0
    context = multiprocessing.get_context("spawn")
    try:
        with context.Pool(1) as pool:
            pool.apply(_made, (path, rows))
        for state in ("raw", "compacted"):
            if state == "compacted":
                with context.Pool(1) as pool:
                    compaction = pool.apply(_compacted, (path, cores))
                lines.append(("compaction", f"{compaction:.1f}", "", "", ""))
            if given.only in (None, state):
                measures = (("one pass", "pass"), ("all reports", "reports"))
                found[state] = {name: _apart(path, cores, what) for name, what in measures}
                if state == "raw":
                    words = ("report", "all", path, "--master", f"local[{cores},4]")
                    found[state][COMMAND] = commanded(*words)
                once = found[state]["one pass"]
                for name, one in found[state].items():
                    lines.append(
                        (
                            f"{name}, {state}",
                            f"{one['seconds']:.1f}",
                            f"{one['seconds'] / once['seconds']:.2f}",
                            f"{one['gigabytes']:.2f}",
                            f"{one['started']:.1f}" if "started" in one else "included",
                        )
                    )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    table(
        f"reports on {rows:,} rows, {cores} cores",
        ("what", "seconds", "x one pass", "GB at most", "start, s"),
        lines,
    )
    about = f"{rows:,} rows, {cores} cores, a cold process, once"
    full = rows == _FULL
    taken = _figure("reports-time", "Time of all reports", about, found, full=full)
    night = Row("compaction itself", Spread.once(compaction), group="at night")
    yield dataclasses.replace(taken, rows=(*taken.rows, night))
    yield _figure("reports-memory", "Memory of all reports", about, found, full=full)


def _figure(
    name: str, title: str, about: str, found: dict[str, dict[str, dict[str, float]]], *, full: bool
) -> Figure:
    unit, field, most = {
        "reports-time": ("s", "seconds", "≤ 40"),
        "reports-memory": ("GB", "gigabytes", "≤ 2"),
    }[name]
    rows = []
    for state, each in found.items():
        base, ours = (each[what][field] for what in ("one pass", "all reports"))
        group = {"raw": "as it was archived", "compacted": "compacted"}[state]
        rows.append(Row("one pass", Spread.once(base), "baseline", group=group))
        ratio = ours / base
        rows.append(
            Row("all reports", Spread.once(ours), ratio=ratio, against="one pass", group=group)
        )
        if COMMAND in each:
            whole = Spread.once(each[COMMAND][field])
            rows.append(Row(COMMAND, whole, wanted=most if full else "", group=group))
    return Figure(name, "reports.reported", title, about, unit, tuple(rows), "less")


def main() -> None:
    """Measure all, or one part in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=_FULL)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", choices=("raw", "compacted"))
    parser.add_argument("--measure", choices=("pass", "reports"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_known_args()[0]
    if args.measure:
        sys.stdout.write(json.dumps(measured(args.path, args.cores, args.measure)) + "\n")
    else:
        run(measure, parser, SIZES)


if __name__ == "__main__":
    main()
