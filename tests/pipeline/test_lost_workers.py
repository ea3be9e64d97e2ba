"""An archive whose Python workers are killed under it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil

from agentbus.core.settings import resolve
from agentbus.pipeline.archives.archiver import Archiver
from tests.pipeline.streams import Streams, assert_equal


def workers(of: int) -> list[int]:
    """Return the Python workers below a process, without the daemons that fork them.

    A daemon that is killed would leave the shared session with one that cannot be written to.
    """
    daemons = {}
    for process in psutil.Process(of).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            if "pyspark/daemon" in words or "pyspark.daemon" in words:
                daemons[process.pid] = process.ppid()
    return [pid for pid, parent in daemons.items() if parent in daemons]


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
