"""The figures of a whole project at one moment, for views that show them and are redrawn."""

from __future__ import annotations

from agentbus.dashboard.agent_pages import AgentDetail, AgentPage, AgentRow
from agentbus.dashboard.channel_pages import ChannelPage
from agentbus.dashboard.check_list import HealthCheck, HealthChecks
from agentbus.dashboard.dashboard import Dashboard
from agentbus.dashboard.direct_messages import DirectMessage
from agentbus.dashboard.error_groups import (
    ErrorGroup,
    ErrorReport,
    LetterPage,
    PurgePage,
    ReplayPage,
)
from agentbus.dashboard.event_streams import EventOverview, EventStream, QuarantinedConsumer
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
from agentbus.dashboard.note_pages import NotePage
from agentbus.dashboard.project_pages import FlagPage, Pages
from agentbus.dashboard.refusals import Refusals
from agentbus.dashboard.task_chain import Chain, ChainLink, ChainTask, TaskReport
from agentbus.dashboard.task_lists import TaskPage
from agentbus.dashboard.task_search import SearchPage, TaskHit
from agentbus.dashboard.worker_pages import WorkerPage

__all__ = [
    "AgentDetail",
    "AgentPage",
    "AgentRow",
    "Chain",
    "ChainLink",
    "ChainTask",
    "ChannelPage",
    "Dashboard",
    "DirectMessage",
    "ErrorCount",
    "ErrorGroup",
    "ErrorReport",
    "EventOverview",
    "EventReport",
    "EventStream",
    "FlagPage",
    "HealthCheck",
    "HealthChecks",
    "History",
    "HistoryPoint",
    "LetterPage",
    "NotePage",
    "Pages",
    "PurgePage",
    "QuarantinedConsumer",
    "QueueDetail",
    "QueueRow",
    "Refusals",
    "ReplayPage",
    "RowRange",
    "SearchPage",
    "Snapshot",
    "TaskHit",
    "TaskPage",
    "TaskReport",
    "Totals",
    "WorkerPage",
]
