"""The supervised process itself: lists the consumers of a module, or runs its role and sends heartbeats."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError, ConfigError
from agentbus.events.supervisor.report_pipe import ReportPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentbus.events.supervisor.roles import Role

STOP = b"stop\n"
# A line must fit into one atomic write to a pipe, even if JSON needs six bytes for each character.
_LONGEST = 600
_PR_SET_PDEATHSIG = 1
_BEATS_A_TIMEOUT = 20


def work(job: Mapping[str, Any]) -> int:
    """Do the job that a supervisor handed over, and return the exit code of this process."""
    control = _set_apart(0)
    stopping = threading.Event()
    running: list[Role] = []
    # The supervisor's stdout has its own records: the handlers' output goes to stderr.
    os.dup2(2, 1)
    report = ReportPipe(job["report"], job["timeout"] / _BEATS_A_TIMEOUT, job["heartbeat"])
    _die_with(job["parent"])
    logging.getLogger("agentbus").addHandler(_WarningForwarder(report))

    def stop() -> None:
        stopping.set()
        for each in running:
            each.stop()

    _watch(control, stop)
    try:
        if job["consumer"] is None:
            from agentbus.events.declare import load, registered

            load(job["module"])
            report.send(consumers={each.name: each.stream for each in registered().values()})
            return 0
        from agentbus.events.supervisor.roles import role

        mine = role(job, report)
        running.append(mine)
        if stopping.is_set():
            mine.stop()
        if job["target"] is None:
            report.send(ready=True)
        mine.run()
    except Exception as error:  # noqa: BLE001 (every error is reported to the supervisor)
        said = (
            str(error) if isinstance(error, AgentBusError) else f"{type(error).__name__}: {error}"
        )
        # Another process may be configured correctly: the consumer is not to blame.
        own = isinstance(error, ConfigError)
        report.send(error=_shown(said), own=own)
        return error.exit_code if isinstance(error, ConfigError) else 1
    return 0


def _shown(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:_LONGEST]


class _WarningForwarder(logging.Handler):
    """Sends warnings to the supervisor, which logs them."""

    def __init__(self, report: ReportPipe) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = getattr(record, "error", None) or record.getMessage()
        self._report.send(warning=str(error)[:_LONGEST])


# -- the supervisor ---


def _set_apart(descriptor: int) -> int:
    """Move a descriptor to where programs started by a handler cannot read it; leave /dev/null there."""
    moved = os.dup(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return moved


def _die_with(parent: int) -> None:
    """Let the system kill this process when its supervisor dies, or has died already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(control: int, stop: Callable[[], None]) -> None:
    """Stop on request of the supervisor or a signal; die when the supervisor's end of the pipe closes."""
    heard, wake = os.pipe()
    for end in (heard, wake):
        os.set_blocking(end, False)
    # The interpreter writes there when a signal comes: the main thread may be in a handler for long.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not SIG_IGN: the wakeup needs a handler.
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while True:
            ready, _, _ = select.select([control, heard], [], [])
            if control in ready and not os.read(control, 64):
                os.kill(os.getpid(), signal.SIGKILL)
            if heard in ready:
                os.read(heard, 64)
            stop()

    threading.Thread(target=listen, name="supervisor", daemon=True).start()
