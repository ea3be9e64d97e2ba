"""Runs long-lived jobs until a signal stops them, and reports their warnings."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentbus.commands import _signals, _waiting
from agentbus.commands._output import to_stderr
from agentbus.core import oplog
from agentbus.queues.claimed import error_text

if TYPE_CHECKING:
    from agentbus.commands._declare import Call

# The number of signals that end the process at once.
_TWICE = 2
# Seconds between two wakeups of the main thread to handle signals.
_GLANCE = 0.5

# The attributes of a log record that go into the operations log.
_LOGGED = (
    *("verb", "event", "consumer", "stream", "pid", "exit", "signal", "crash_count"),
    *("window_seconds", "reason", "error", "lost"),
)
# Attributes that are logged of failed runs and of tasks that became dead letters.
_OF_RUNS = (
    *("verb", "agent", "project", "queue", "group", "id", "attempt", "outcome", "error"),
    "duration_ms",
)


@contextlib.contextmanager
def warned(call: Call) -> Iterator[None]:
    """Log and print the library's warnings; a repeated warning is only logged."""
    handler = _Telling(call)
    logger = logging.getLogger("agentbus")
    before = logger.level
    logger.addHandler(handler)
    if before == logging.NOTSET or before > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


@contextlib.contextmanager
def failures_logged(call: Call) -> Iterator[None]:
    """Write the library's warnings and errors, such as failed runs, to the operations log."""
    handler = _Writing(call)
    logger = logging.getLogger("agentbus")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Writing(logging.Handler):
    def __init__(self, call: Call) -> None:
        super().__init__(logging.WARNING)
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        _write(self._call, record, _OF_RUNS)


def _write(call: Call, record: logging.LogRecord, names: Sequence[str]) -> dict[str, object]:
    """Write a record to the operations log, and return its fields."""
    fields = {key: getattr(record, key) for key in names if hasattr(record, key)}
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = error_text(record.exc_info[1])[1]
    oplog.write(record.levelname.lower(), call.settings.log_level, fields)
    return fields


class _Telling(logging.Handler):
    def __init__(self, call: Call) -> None:
        super().__init__(logging.INFO)
        self._call = call
        self._last: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        of_task = getattr(record, "verb", None) == "work"
        fields = _write(self._call, record, _OF_RUNS if of_task else _LOGGED)
        shown = of_task or ("event" in fields and fields.get("verb") != "route")
        if shown or record.levelno < logging.WARNING:
            # The record on stdout already reports this; a router prints no record of rules that it
            # refuses.
            return
        who = str(fields.get("consumer") or fields.get("stream") or fields.get("verb"))
        if "lost" in fields:
            lost = fields["lost"]
            said = "1 event, which is" if lost == 1 else f"{lost} events, which are"
            text = f"the server lost {said} published again"
        else:
            text = str(fields.get("error", record.getMessage()))
        if self._last.get(who) != text:
            self._last[who] = text
            self._call.out.warn(f"{who}: {text}")


def until_told(jobs: Sequence[tuple[Callable[[], object], Callable[[], None]]]) -> None:
    """Run jobs in threads until all have ended; each is a pair of functions, run and stop.

    A signal stops all of them, and so does the first failure, which is raised. A second signal ends the
    process at once: what is not committed then has not happened.
    """
    failed: list[BaseException] = []
    told: list[int] = []

    def stop() -> None:
        for _, ending in jobs:
            ending()

    def work(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            failed.append(error)
            stop()

    def heard(number: int, _frame: object) -> None:
        told.append(number)
        if len(told) == _TWICE:
            to_stderr("agentbus: ended at once; what was not committed has not happened\n")
            _waiting.leave(128 + number, "ended at once by a second signal")
        stop()

    # Run the jobs outside the main thread: a signal handler that interrupted a job inside an
    # event's lock would deadlock.
    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job, _ in jobs]
    with _signals.heard(heard):
        for thread in threads:
            thread.start()
        for thread in threads:
            # A signal that another thread receives does not wake the main thread, which runs the
            # handlers.
            while thread.is_alive():
                thread.join(_GLANCE)
    if failed:
        raise failed[0]
