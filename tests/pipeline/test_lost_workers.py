"""An archive whose Python workers are killed under it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

from agentbus.core.settings import resolve
from agentbus.pipeline.archives.archiver import Archiver
from tests.pipeline.streams import Streams, assert_equal


def workers(of: int) -> list[int]:
    """Return the Python workers below a process, without the daemons that fork them.

    A daemon that is killed would leave the shared session with one that cannot be written to.
    """
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    below: dict[int, list[tuple[int, bool]]] = {}
    for line in found.stdout.splitlines():
        pid, parent, args = line.split(None, 2)
        forks = "pyspark/daemon" in args or "pyspark.daemon" in args
        below.setdefault(int(parent), []).append((int(pid), forks))
    pids, waiting = [], [(of, False)]
    while waiting:
        parent, inside = waiting.pop()
        for pid, forks in below.get(parent, []):
            waiting.append((pid, forks))
            if inside and forks:
                pids.append(pid)
    return pids


def test_tasks_whose_python_workers_are_killed_are_done_again(spark, valkey, project, tmp_path):
    path = str(tmp_path / "archive")
    streams = Streams(valkey, project, ["q:mail"])
    streams.add(60_000)
    over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not over.wait(0.3) and len(killed) < 2:
            for pid in workers(os.getpid())[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        settings = resolve({"url": valkey.url, "project": project})
        with Archiver(spark, settings, path, page=500) as archiver:
            while not killed:
                archiver.run()
                streams.add(30_000)
            archiver.run()
    finally:
        over.set()
        killer.join()

    assert killed
    assert_equal(streams, path)
