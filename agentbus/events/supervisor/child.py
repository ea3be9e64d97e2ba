"""The supervised process: lists the consumers of a module, or runs its role with heartbeats."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError, ConfigError
from agentbus.events.declare import load, registered
from agentbus.events.supervisor.roles import role
from agentbus.processes.child import die_with, set_apart, watch
from agentbus.processes.report_pipe import ReportPipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.events.supervisor.roles import Role

# Maximum length of an error: a line must fit into one atomic write to a pipe, even if JSON needs
# six bytes per character.
_LONGEST = 600
_BEATS_A_TIMEOUT = 20


def work(job: Mapping[str, Any]) -> int:
    """Do the job that a supervisor passed to this process, and return the exit code."""
    control = set_apart(0)
    stopping = threading.Event()
    running: list[Role] = []
    # The supervisor writes its records to stdout, so the handlers' output goes to stderr.
    os.dup2(2, 1)
    report = ReportPipe(job["report"], job["timeout"] / _BEATS_A_TIMEOUT, job["heartbeat"])
    die_with(job["parent"])
    logging.getLogger("agentbus").addHandler(_WarningForwarder(report))

    def stop() -> None:
        stopping.set()
        for each in running:
            each.stop()

    watch(control, stop)
    try:
        if job["consumer"] is None:
            load(job["module"])
            report.send(
                consumers={
                    each.name: each.stream for each in registered(job["bus"]["app"]).values()
                }
            )
            return 0
        own_role = role(job, report)
        running.append(own_role)
        if stopping.is_set():
            own_role.stop()
        if job["target"] is None:
            report.send(ready=True)
        own_role.run()
    except Exception as error:  # noqa: BLE001 (every error is reported to the supervisor)
        said = (
            str(error) if isinstance(error, AgentBusError) else f"{type(error).__name__}: {error}"
        )
        # A ConfigError is the fault of this process, not of the consumer: another process may have
        # a correct configuration.
        own = isinstance(error, ConfigError)
        report.send(error=_shown(said), own=own)
        return error.exit_code if isinstance(error, ConfigError) else 1
    return 0


def _shown(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:_LONGEST]


class _WarningForwarder(logging.Handler):
    """Sends warnings to the supervisor, which logs them; prints their tracebacks."""

    def __init__(self, report: ReportPipe) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        error = getattr(record, "error", None) or record.getMessage()
        if record.exc_text and record.exc_text != self._last:
            # Like the output of handlers, the traceback goes to the supervisor's stderr, once.
            self._last = record.exc_text
            os.write(2, f"{record.exc_text}\n".encode(errors="backslashreplace"))
        self._report.send(warning=str(error)[:_LONGEST])
