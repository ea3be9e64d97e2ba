"""One of the processes of `work --processes`."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import threading
from collections.abc import Mapping
from typing import Any

from agentbus.commands import _main, work
from agentbus.commands._processes import Share
from agentbus.processes.child import die_with, set_apart
from agentbus.processes.report_pipe import ReportPipe


def work_on(job: Mapping[str, Any]) -> int:
    """Work as one of several processes, and return the exit code."""
    control = set_apart(0)
    die_with(job["parent"])
    threading.Thread(target=_die, args=(control,), name="parent", daemon=True).start()
    settings = pickle.loads(base64.b64decode(job["settings"]))  # noqa: S301 (the parent's own)
    values = dict(job["values"])
    report = ReportPipe(job["report"], 1.0)
    values["share"] = Share(report, job["number"], values["max_tasks_per_child"])
    return _main.call(work.VERB, values, work, settings)


def _die(control: int) -> None:
    """Exit when the parent's end of the pipe closes, if the system does not ensure that."""
    while os.read(control, 64):
        continue
    os.kill(os.getpid(), signal.SIGKILL)
