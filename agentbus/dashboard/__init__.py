"""The figures of a whole project at one moment, for views that show them and are redrawn."""

from __future__ import annotations

from agentbus.dashboard.dashboard import Dashboard
from agentbus.dashboard.error_groups import (
    ErrorGroup,
    ErrorReport,
    LetterPage,
    PurgePage,
    ReplayPage,
)
from agentbus.dashboard.figures import (
    EventReport,
    QueueDetail,
    QueueRow,
    RowRange,
    Snapshot,
    Totals,
)
from agentbus.dashboard.history import History, HistoryPoint
from agentbus.dashboard.letter_boxes import ErrorCount
from agentbus.dashboard.task_chain import Chain, ChainLink, ChainTask, TaskReport
from agentbus.dashboard.task_lists import TaskPage
from agentbus.dashboard.task_search import SearchPage, TaskHit

__all__ = [
    "Chain",
    "ChainLink",
    "ChainTask",
    "Dashboard",
    "ErrorCount",
    "ErrorGroup",
    "ErrorReport",
    "EventReport",
    "History",
    "HistoryPoint",
    "LetterPage",
    "PurgePage",
    "QueueDetail",
    "QueueRow",
    "ReplayPage",
    "RowRange",
    "SearchPage",
    "Snapshot",
    "TaskHit",
    "TaskPage",
    "TaskReport",
    "Totals",
]
