"""A stream of Spark's into a queue, whose driver, executors and Python workers are killed on the way.

    python -m tests.pipeline.sinking [--rows N] [--kills N] [--local]

Runs it with a server, and a cluster of two workers, of its own, and prints what was killed and counted.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline import clusters
from tests.servers import Server, scrubbed
from tests.source_tree import ROOT
from tests.torture.archive.site import descendants

PROJECT = "sinking"
_FILES, _AT_ONCE = 100, 5
# What may pass without any progress, in seconds: on a loaded machine a driver starts for minutes.
_STUCK = 900.0
# The newest process that a daemon of Spark's for Python workers has forked.
_WORKER = "pyspark"
_QUERY = """
import json, sys
from pyspark.sql import functions as f
from agentbus.pipeline import AgentBusSource, session

master, conf, url, path, files = sys.argv[1:]
spark = session(master, conf=json.loads(conf))
# The executors' Python lacks the package: it is sent to them.
spark.dataSource.register(AgentBusSource)
rows = spark.readStream.schema("n LONG, body STRING").option("maxFilesPerTrigger", files)
payload = f.to_json(f.struct("n", "body")).alias("payload")
query = (
    rows.parquet(path + "/in")
    .select(payload, f.concat(f.lit("k"), "n").alias("key"))
    .writeStream.format("agentbus")
    .options(url=url, project="sinking", queue="mail", bound="1000000000")
    .option("checkpointLocation", path + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


@dataclass
class Outcome:
    """What was killed, how often the driver was started, and how often each row is in the queue."""

    killed: collections.Counter[str] = field(default_factory=collections.Counter)
    drivers: int = 0
    times: collections.Counter[int] = field(default_factory=collections.Counter)


class Stream:
    """The query as a process, and what it is made of."""

    def __init__(
        self,
        place: pathlib.Path,
        server: Server,
        cluster: clusters.Cluster | None,
    ) -> None:
        self._place = place
        self._server = server
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the driver."""
        master, conf, more = "local[2,20]", {"spark.driver.memory": "1g"}, {}
        if self._cluster is not None:
            master = self._cluster.master
            conf = {**self._cluster.conf, "spark.task.maxFailures": "20"}
            more = {"PYSPARK_PYTHON": self._cluster.python, "SPARK_HOME": self._cluster.home}
        # The driver's own Python workers are those of the executors, which lack the package.
        paths = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
        words = (master, json.dumps(conf), self._server.tcp_url, str(self._place), str(_AT_ONCE))
        home = self._place / "home"
        home.mkdir(exist_ok=True)
        with (self._place / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _QUERY, *words],
                cwd=home,
                env={
                    **scrubbed(dict(os.environ)),
                    "HOME": str(home),
                    "PYTHONPATH": paths,
                    **more,
                },
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def ended(self) -> int | None:
        """Return the exit code of the driver, None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def written(self) -> int:
        """Return how many rows are in the queue."""
        found: int = self._server.ask("XLEN", f"{PROJECT}:q:mail")
        return found

    def kill(self, what: str) -> bool:
        """Kill the driver with its JVM, an executor, or a Python worker; False if there is none."""
        assert self._process is not None
        own = self._process.pid
        if what == "driver":
            pids = [*dict(descendants(own)), own]
        else:
            roots = [own]
            if self._cluster is not None:
                roots = [worker.process.pid for worker in self._cluster.workers]
            found = {pid: args for root in roots for pid, args in descendants(root)}
            mark = "CoarseGrainedExecutorBackend" if what == "executor" else _WORKER
            pids = [pid for pid, args in found.items() if mark in args][-1:]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if what == "driver":
            self._process.wait()
        return bool(pids)

    def stuck(self) -> str:
        """Return what the driver said last, and what its processes and threads, and the workers', do."""
        assert self._process is not None
        roots, said = [self._process.pid], list[str]()
        if self._cluster is not None:
            roots += [worker.process.pid for worker in self._cluster.workers]
            said = [line for worker in self._cluster.workers for line in worker.lines[-50:]]
        below = {pid: args for root in roots for pid, args in descendants(root)}
        for pid, args in below.items():
            if "java" in args.partition(" ")[0]:
                # Java writes its threads to its output.
                os.kill(pid, signal.SIGQUIT)
        time.sleep(5)
        listed = "".join(f"{pid} {args[-150:]}\n" for pid, args in below.items())
        return f"{listed}{''.join(said)}{(self._place / 'said').read_text()[-100_000:]}"

    def close(self) -> None:
        """Kill what still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill("driver")


def sunk(
    place: pathlib.Path,
    server: Server,
    cluster: clusters.Cluster | None,
    *,
    rows: int,
    kills: int,
    seed: int = 1,
) -> Outcome:
    """Run the stream to its end, killing on the way, and count what is in the queue."""
    _fill(place / "in", rows)
    dice = random.Random(seed)
    # When to kill: after so many rows, spread over the stream, in the middle of batches.
    marks = sorted(dice.sample(range(rows // 50, rows), kills))
    # A local executor is within the driver.
    kinds = ("driver", "worker") if cluster is None else ("driver", "executor", "worker")
    outcome = Outcome()
    stream = Stream(place, server, cluster)
    try:
        moved, before = time.monotonic(), -1
        while True:
            if outcome.drivers == 0 or stream.ended() not in (None, 0):
                assert outcome.drivers < 2 * kills + 3, (place / "said").read_text()[-5000:]
                stream.start()
                outcome.drivers += 1
            done, code = stream.written(), stream.ended()
            if code == 0:
                break
            if marks and done >= marks[0]:
                what = kinds[(kills - len(marks)) % len(kinds)]
                if stream.kill(what):
                    outcome.killed[what] += 1
                    marks.pop(0)
            if done != before:
                moved, before = time.monotonic(), done
            if time.monotonic() - moved > _STUCK:
                raise AssertionError(f"{done} of {rows} rows, {outcome}: {stream.stuck()}")
            time.sleep(0.02)
    finally:
        stream.close()
    outcome.times.update(_numbers(server))
    return outcome


def _fill(folder: pathlib.Path, rows: int) -> None:
    folder.mkdir(parents=True)
    for number in range(_FILES):
        mine = range(number * rows // _FILES, (number + 1) * rows // _FILES)
        columns: Mapping[str, list[object]] = {"n": list(mine), "body": ["x" * 150] * len(mine)}
        pq.write_table(pa.table(columns), folder / f"{number:03}.parquet")


def _numbers(server: Server) -> Iterator[int]:
    after = "-"
    while page := server.ask("XRANGE", f"{PROJECT}:q:mail", after, "+", "COUNT", 10_000):
        for _, fields in page:
            yield json.loads(fields[fields.index(b"payload") + 1])["n"]
        after = f"({page[-1][0].decode()}"


def main() -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--local", action="store_true", help="in one JVM, without a cluster")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sinking-") as folder, contextlib.ExitStack() as stack:
        place = pathlib.Path(folder)
        server = stack.enter_context(Server(place / "server"))
        cluster = None
        if not given.local:
            made = contextlib.contextmanager(clusters.cluster)(place / "cluster", 2)
            cluster = stack.enter_context(made)
        began = time.monotonic()
        found = sunk(
            place / "stream", server, cluster, rows=given.rows, kills=given.kills, seed=given.seed
        )
    twice = sum(1 for times in found.times.values() if times > 1)
    sys.stdout.write(
        f"{given.rows} rows in {time.monotonic() - began:.0f} s, {found.drivers} drivers, killed"
        f" {dict(found.killed)}: {len(found.times)} in the queue, {twice} more than once\n"
    )
    sys.exit(twice > 0 or len(found.times) != given.rows)


if __name__ == "__main__":
    main()
