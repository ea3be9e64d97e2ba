"""Starts Spark's JVM, and ends it if this process is interrupted before it is ready.

Spark itself would leave it running forever.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from pyspark import SparkConf, java_gateway

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

# The name by which Spark's own function starts a process.
_POPEN = "Popen"
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def launch(conf: SparkConf, *, stderr: IO[bytes] | None = None) -> JavaGateway:
    """Start a JVM by Spark's own script and connect to it. Raises what Spark raises."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        with _held_back():
            started.append(subprocess.Popen(*words, **options))
        return started[0]

    plain = getattr(java_gateway, _POPEN)
    setattr(java_gateway, _POPEN, popen)
    try:
        options = {} if stderr is None else {"stderr": stderr}
        return java_gateway.launch_gateway(conf, popen_kwargs=options)  # type: ignore[no-untyped-call]
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        setattr(java_gateway, _POPEN, plain)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Defer interrupts, so that a process that is just being started is not left running."""
    if threading.current_thread() is not threading.main_thread():
        # Interrupts reach the main thread only.
        yield
        return
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: heard.append(number))
        for number in _INTERRUPTS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])
