"""Starts Spark's JVM, and stops it if this process is interrupted before it is ready.

Spark itself would leave the JVM running forever.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import string
import struct
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from pyspark import SparkConf, java_gateway
from pyspark.errors import PySparkRuntimeError

from agentbus.core.errors import AgentBusError
from agentbus.pipeline.spark import scratch

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

# The name that Spark's own function uses to start a process.
_POPEN = "Popen"
# Characters that are written as they are.
_PLAIN = frozenset(string.ascii_letters + string.digits + "./_-+,;@$%&()[]{}*?<>|")
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
# The error of bash, in any language, after the first JVM printed nothing.
_EMPTY_ANSWER = re.compile(rb".*/spark-class: \D+\d+: CMD: .*")


def launch(conf: SparkConf, said: pathlib.Path | None = None) -> JavaGateway:
    """Start a JVM with Spark's own script and connect to it; output goes to stderr or a file.

    Raises Spark's errors, and `AgentBusError` if the JVM was killed: another try may succeed.
    """
    if said is not None:
        with said.open("wb") as file:
            return _launch(conf, file)
    return _launch(conf, None)


def _launch(conf: SparkConf, stderr: IO[bytes] | None) -> JavaGateway:
    started: list[subprocess.Popen[bytes]] = []

    # Settings may be secret, and everybody can read the arguments of a process.
    properties = scratch.place() / "spark.properties"
    with open(os.open(properties, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.getAll())

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        given = ["--properties-file", str(properties), "--load-spark-defaults"]
        with _held_back():
            started.append(subprocess.Popen([command[0], *given, *command[1:]], **options))
        return started[0]

    plain = getattr(java_gateway, _POPEN)
    setattr(java_gateway, _POPEN, popen)
    try:
        options = {} if stderr is None else {"stderr": stderr}
        return java_gateway.launch_gateway(popen_kwargs=options)  # type: ignore[no-untyped-call]
    except BaseException as error:
        ended = [process.poll() for process in started]
        for process in started:
            process.kill()
            process.wait()
        # The process was killed by a signal, or the script reports that of its child.
        killed = any(code and not 0 < code < 128 for code in ended)
        if isinstance(error, PySparkRuntimeError) and (killed or _answered_nothing(stderr)):
            raise AgentBusError(
                "Spark's Java process was killed as it started",
                hint="try again; if memory is short, give spark.driver.memory less",
            ) from error
        raise
    finally:
        setattr(java_gateway, _POPEN, plain)
        properties.unlink()


def _escaped(text: str) -> str:
    """Return text as a key or a value of a file of Java's properties."""
    units = struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass"))
    return "".join(chr(unit) if chr(unit) in _PLAIN else f"\\u{unit:04x}" for (unit,) in units)


def _answered_nothing(stderr: IO[bytes] | None) -> bool:
    """Tell whether the first JVM, which prints the command of the second, printed nothing.

    The script does not report the reason: it only fails on the empty output.
    """
    if stderr is None:
        return False
    lines = pathlib.Path(stderr.name).read_bytes().splitlines()
    return bool(lines) and all(_EMPTY_ANSWER.fullmatch(line) for line in lines)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Defer interrupts, so that a process that is just being started is not left running."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread receives interrupts.
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
