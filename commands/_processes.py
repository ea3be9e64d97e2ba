"""`work --processes`: a parent process that keeps workers, and the share of work of each."""

from __future__ import annotations

import base64
import pickle
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentbus.commands import _signals
from agentbus.core.errors import ConfigError
from agentbus.core.names import word
from agentbus.processes.processes import Processes

if TYPE_CHECKING:
    from agentbus.commands._declare import Call
    from agentbus.processes.processes import ProcessCrash

_CHILD = "agentbus.commands._process_child:work_on"
# Signals that the parent passes on.
_PASSED_ON = (*_signals.ENDING, signal.SIGHUP)


class Share:
    """The share of one of several processes: its reports to the parent, and its limit of tasks."""

    def __init__(self, report: Any, number: int, most: int | None) -> None:
        self.number = number
        self.most = most
        self._report = report

    def ready(self) -> None:
        """Report that the worker is about to begin taking tasks."""
        self._report.send(ready=True)

    def ended(self, done: int, failed: int, sent: int, *, stopped: bool) -> None:
        """Report the totals; without a signal, a process that has reached its limit is replaced."""
        full = self.most is not None and done >= self.most and not stopped
        totals = {"done": done, "failed": failed, "sent": sent}
        self._report.send(totals=totals, full=full)


def keep(call: Call) -> tuple[int, Mapping[str, int]]:
    """Keep the processes of `work` until they have ended; return the exit code and totals."""
    args, settings = call.args, call.settings
    if (settings.url or "").startswith("memory:"):
        raise ConfigError(
            "several processes cannot use a server in the memory of one",
            hint="name a server by --url",
        )

    def tell(crash: ProcessCrash) -> None:
        error = f": {crash.error}" if crash.error else ""
        call.out.warn(
            f"process {crash.number} ({crash.pid}) crashed ({crash.how}{error});"
            f" it is replaced in {crash.pause:.3g} s"
        )

    # The settings depend on the session and on flags, which the processes do not have. They are
    # passed by a pipe, since arguments would show passwords.
    packed = base64.b64encode(pickle.dumps(settings)).decode()
    values = {name: value for name, value in vars(args).items() if name != "pid"}
    job = {"settings": packed, "values": values}
    processes = Processes(
        _CHILD,
        job,
        args.processes,
        label=f"work {word(args.queue)}",
        on_crash=tell,
    )
    told: list[int] = []

    def stop(number: int, _frame: object) -> None:
        told.append(number)
        processes.stop(number)

    with _signals.heard(stop, *_PASSED_ON):
        code = processes.run()
    return 128 + signal.SIGINT if signal.SIGINT in told else code, processes.totals
