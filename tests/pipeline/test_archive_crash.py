"""Large archives whose processes are killed: equal to the streams afterwards, id by id."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from tests.pipeline.streams import Streams, assert_equal
from tests.servers import Shell


class Archiving:
    """`agentbus archive` processes, started and killed."""

    def __init__(self, shell: Shell, path: str, *options: str) -> None:
        self.shell = shell
        self.words = ("archive", path, "--continuous", "--interval", "0.1", "--json", *options)
        self.running: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        """Start one, in a process group of its own."""
        process = self.shell.start(*self.words, start_new_session=True)
        self.running.append(process)
        return process

    def round(self, process: subprocess.Popen[str]) -> None:
        """Wait until a process has archived something."""
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""

    def kill(self, process: subprocess.Popen[str], *, everything: bool) -> None:
        """Kill the driver, or all that it started with it."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if everything else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        self.running.remove(process)

    def end(self) -> None:
        """Kill what runs, with what a killed driver left behind."""
        for process in list(self.running):
            self.kill(process, everything=True)


@pytest.fixture
def archiving(real_shell, tmp_path) -> Iterator[Archiving]:
    made = Archiving(real_shell, str(tmp_path / "archive"))
    yield made
    made.end()


@contextlib.contextmanager
def feeding(streams: Streams, number: int) -> Iterator[None]:
    """Add entries without end meanwhile, so many at a time."""
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.05):
            streams.add(number)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def killed_drivers(
    archiving: Archiving, streams: Streams, kills: int, *, at_once: int = 2, seed: int = 1
) -> None:
    """Let archivers work side by side, and kill one or all of their processes again and again."""
    chance = random.Random(seed)
    with feeding(streams, 500):
        for n in range(kills):
            while len(archiving.running) < at_once:
                archiving.start()
            victim = archiving.running[0]
            if n % 2:
                # Any moment, that of its start among them.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    victim.wait(chance.uniform(0.0, 12.0))
            else:
                archiving.round(victim)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    victim.wait(chance.uniform(0.0, 0.4))
            archiving.kill(victim, everything=n % 3 != 0)
    archiving.end()


def last_round(shell: Shell, path: str) -> None:
    """Archive what is left, and sweep what the dead left behind."""
    shell.ok("archive", path, timeout=600)
    ArchiveTable(place(path)).sweep(0, round_seconds=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_entries_are_archived_once_under_twenty_kills_of_drivers(
    archiving, valkey, project, tmp_path
):
    streams = Streams(valkey, project, ["q:mail", "q:mail:high", "q:other", "dlq:mail:default"])
    streams.add(1_000_000)

    killed_drivers(archiving, streams, 20)
    last_round(archiving.shell, str(tmp_path / "archive"))

    assert_equal(streams, str(tmp_path / "archive"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_entries_are_archived_once_under_twenty_kills_of_executors(
    cluster_of_two, real_shell, valkey, project, tmp_path
):
    path = str(tmp_path / "archive")
    streams = Streams(valkey, project, ["q:mail", "q:other"])
    streams.add(1_000_000)
    # Executors that are killed are started again, without end.
    conf = {
        **cluster_of_two.conf,
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "100",
        "spark.pyspark.python": cluster_of_two.python,
    }
    archiving = Archiving(
        real_shell,
        path,
        *("--master", cluster_of_two.master),
        *(word for pair in conf.items() for word in ("--spark-conf", "=".join(pair))),
    )
    process = archiving.start()
    killed = 0
    try:
        archiving.round(process)
        with feeding(streams, 2000):
            until = time.monotonic() + 600
            while killed < 20 and time.monotonic() < until:
                for pid in executors():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
                    break
                archiving.round(process)
    finally:
        archiving.end()
    last_round(real_shell, path)

    assert killed == 20
    assert_equal(streams, path)


def executors() -> list[int]:
    """Return the executors of this machine's standalone clusters."""
    found = subprocess.run(
        ["pgrep", "-f", "CoarseGrainedExecutorBackend"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]
