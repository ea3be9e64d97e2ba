"""The figures of a whole project at one moment, for views that show them and are redrawn."""

from __future__ import annotations

from agentbus.dashboard.dashboard import Dashboard
from agentbus.dashboard.figures import (
    EventReport,
    QueueDetail,
    QueueRow,
    RowRange,
    Snapshot,
    Totals,
)

__all__ = ["Dashboard", "EventReport", "QueueDetail", "QueueRow", "RowRange", "Snapshot", "Totals"]
