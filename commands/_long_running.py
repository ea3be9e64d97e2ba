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

# The attributes of a log record, of a run or a process, that go into the operations log.
_LOGGED = (
    *("verb", "agent", "project", "queue", "group", "id", "attempt", "outcome", "error"),
    *("duration_ms", "event", "consumer", "stream", "pid", "exit", "signal", "crash_count"),
    *("window_seconds", "reason", "lost"),
)


@contextlib.contextmanager
def recorded(call: Call, level: int) -> Iterator[None]:
    """Write the library's records from a level on to the operations log."""
    handler = _Writing(call, level)
    logger = logging.getLogger("agentbus")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Writing(logging.Handler):
    def __init__(self, call: Call, level: int) -> None:
        super().__init__(level)
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        fields = {key: getattr(record, key) for key in _LOGGED if hasattr(record, key)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["traceback"] = error_text(record.exc_info[1])[1]
        oplog.write(record.levelname.lower(), self._call.settings.log_level, fields)


def until_told(
    jobs: Sequence[tuple[Callable[[], object], Callable[[], None]]],
    started: Callable[[], None] | None = None,
) -> None:
    """Run jobs in threads until all have ended; each is a pair of functions, run and stop.

    `started` is called before them, when a signal already stops them.

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
        if started is not None:
            started()
        for thread in threads:
            thread.start()
        for thread in threads:
            # A signal that another thread receives does not wake the main thread, which runs the
            # handlers.
            while thread.is_alive():
                thread.join(_GLANCE)
    if failed:
        raise failed[0]
