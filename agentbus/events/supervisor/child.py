"""A worker's own process: looks a module over, or runs one of its consumers and says that it lives."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError, ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentbus.events.event_consumer import Consumer

STOP = b"stop\n"
# A line must fit what a pipe takes in one piece, when each character becomes six.
_LONGEST = 600
_PR_SET_PDEATHSIG = 1
_BEATS_A_TIMEOUT = 20


def work(job: Mapping[str, Any]) -> int:
    """Do a job that a supervisor handed over, and return the exit code of this process."""
    control = _set_apart(0)
    stop = _Stop()
    # What handlers print is no record of the supervisor's.
    os.dup2(2, 1)
    report = ReportPipe(job["report"], job["timeout"] / _BEATS_A_TIMEOUT)
    _die_with(job["parent"])
    logging.getLogger("agentbus").addHandler(_WarningForwarder(report))
    _watch(control, stop)
    try:
        if job["consumer"] is None:
            report.send(consumers=_declared(job["module"]))
            return 0
        consumer = _consumer(job, report)
        stop.of(consumer)
        report.send(ready=True)
        consumer.run()
    except Exception as error:  # noqa: BLE001 (whatever ends it is told to the supervisor)
        report.send(error=_words(error))
        return 1
    return 0


class _Stop:
    """Stops a consumer, also one that is not made yet."""

    def __init__(self) -> None:
        self._told = False
        self._consumer: Consumer | None = None

    def of(self, consumer: Consumer) -> None:
        self._consumer = consumer
        if self._told:
            consumer.stop()

    def __call__(self) -> None:
        self._told = True
        if self._consumer is not None:
            self._consumer.stop()


class ReportPipe:
    """What a worker tells its supervisor: lines of JSON through a pipe, and an empty one as a beat.

    A pipe that is full takes nothing more: then its reader knows that this process lives.
    """

    def __init__(self, descriptor: int, every: float) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._every = every
        self._last = float("-inf")

    def beat(self) -> None:
        """Say that this thread, which works, goes on; not more often than is of use."""
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._write(b"\n")

    def send(self, **fields: object) -> None:
        """Tell one thing."""
        self._write(json.dumps(fields).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line)


class _WarningForwarder(logging.Handler):
    """Hands warnings over to the supervisor, whose log they belong to."""

    def __init__(self, report: ReportPipe) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = getattr(record, "error", None) or record.getMessage()
        self._report.send(warning=str(error)[:_LONGEST])


def _consumer(job: Mapping[str, Any], report: ReportPipe) -> Consumer:
    """Return the consumer that a job names, ready to run."""
    from agentbus.client.bus import Bus
    from agentbus.core.settings import Settings
    from agentbus.events import kill_points
    from agentbus.events.declare import registered
    from agentbus.events.event_consumer import Consumer
    from agentbus.events.opening import open_ledger

    _load(job["module"])
    found = registered().get(job["consumer"])
    if found is None:
        raise UsageError(
            f"the module {job['module']!r} declares no consumer {job['consumer']!r} any more",
            hint="put it back, or start the supervisor anew",
        )
    # Waiting for a server must not take so long that it looks like a worker that hangs.
    patience = job["timeout"] / 3
    settings = Settings(**{**job["bus"], "deadline": min(job["bus"]["deadline"], patience)})
    ledger = open_ledger(
        *(job["database"], job["prefix"], job["schema"]),
        deadline=settings.deadline,
        patience=patience,
    )
    step = kill_points.hook()

    def at(reached: str) -> None:
        report.beat()
        step(reached)

    made = Consumer(
        found.beating(report.beat),
        ledger,
        Bus(settings),
        at=at,
        beat=report.beat,
        lease=job["lease"],
    )
    # By this name the supervisor gives its lease back once it is dead.
    made.owner = job["owner"]
    return made


def _declared(module: str) -> list[tuple[str, str]]:
    from agentbus.events.declare import registered

    _load(module)
    return [(each.name, each.stream) for each in registered().values()]


def _load(module: str) -> None:
    try:
        import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the module {module!r} cannot be loaded ({type(error).__name__}: {error})",
            hint="correct it, or start this where it can be found",
        ) from error


def _words(error: BaseException) -> str:
    said = str(error) if isinstance(error, AgentBusError) else f"{type(error).__name__}: {error}"
    return said.encode("utf-8", "backslashreplace").decode()[:_LONGEST]


# -- the supervisor ---


def _set_apart(descriptor: int) -> int:
    """Move a descriptor to where no program that a handler starts can read it, and leave nothing there."""
    moved = os.dup(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return moved


def _die_with(parent: int) -> None:
    """Have this process killed when its supervisor dies; also when that has happened already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(control: int, stop: Callable[[], None]) -> None:
    """Stop when told to, by the supervisor or a signal; die when the supervisor's end is closed."""
    heard, wake = os.pipe()
    for end in (heard, wake):
        os.set_blocking(end, False)
    # Written by the interpreter as the signal comes: the main thread may be in a handler for long.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _pass)

    def listen() -> None:
        while True:
            ready, _, _ = select.select([control, heard], [], [])
            if control in ready and not os.read(control, 64):
                os.kill(os.getpid(), signal.SIGKILL)
            if heard in ready:
                os.read(heard, 64)
            stop()

    threading.Thread(target=listen, name="supervisor", daemon=True).start()


def _pass(_number: int, _frame: object) -> None:
    pass
