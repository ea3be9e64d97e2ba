"""Reports on an archive: each computes a few small tables from rows of the schema.

A report is a module of this package with a `REPORT`; it is loaded on demand.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.pipeline.reports.report import Report

# Every report in the order of the page: its name, which is also its module's, and the question that
# it answers.
NAMES = {
    "activity": "who said and published how much, and when",
    "conversations": "who answers whom, and how fast",
    "tasks": "what became of the tasks, how long they waited and ran",
    "attempts": "which attempts at tasks were slow, by which workers, with which errors",
    "flags": "how long flags were held, and who contended for them",
    "lag": "how far consumers were behind, and which workers vanished",
    "slowest": "which queues, workers and causes cost the most time",
    "anomalies": "which hours differ from the same hour of earlier days",
}
ALL = "all"


def chosen(name: str) -> tuple[str, ...]:
    """Return the names of the reports that a name selects; `all` selects every report.

    Raises `UsageError`, with the list, if there is no such report.
    """
    if name == ALL:
        return tuple(NAMES)
    if name not in NAMES:
        raise UsageError(
            f"there is no report {name!r}",
            hint=f"take one of {', '.join(NAMES)}, or {ALL}",
        )
    return (name,)


def load(name: str) -> Report:
    """Load the report of this name."""
    chosen(name)
    found: Report = importlib.import_module(f"{__name__}.{name}").REPORT
    return found
