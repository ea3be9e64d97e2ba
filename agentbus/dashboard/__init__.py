"""The figures of a project at one moment, for views that are redrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.errors import ConfigError, UsageError
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
from agentbus.dashboard.task_table import TaskRow, TaskTable
from agentbus.dashboard.work_pages import FlowPage, LimitPage, LimitRow, LimitUse, SchedulePage
from agentbus.dashboard.worker_pages import WorkerPage
from agentbus.store.verb import Awaiting

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.applications import Starlette

    from agentbus.client.aio import AsyncBus

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
    "FlowPage",
    "HealthCheck",
    "HealthChecks",
    "History",
    "HistoryPoint",
    "LetterPage",
    "LimitPage",
    "LimitRow",
    "LimitUse",
    "NotePage",
    "Pages",
    "PurgePage",
    "QuarantinedConsumer",
    "QueueDetail",
    "QueueRow",
    "Refusals",
    "ReplayPage",
    "RowRange",
    "SchedulePage",
    "SearchPage",
    "Snapshot",
    "TaskHit",
    "TaskPage",
    "TaskReport",
    "TaskRow",
    "TaskTable",
    "Totals",
    "WorkerPage",
    "app",
]


def app(
    bus: AsyncBus,
    *,
    write: bool = False,
    person: str | None = None,
    token: str | None = None,
    hosts: Collection[str] = ("localhost", "127.0.0.1", "::1"),
    origins: Collection[str] = (),
    reports: str | None = None,
    all_projects: bool = False,
) -> Starlette:
    """Return a project's dashboard as an ASGI application, to be mounted into another application.

    It only reads, unless `write` lets its forms act, as `human:<person>` (by default the user of the
    system). Requests must name one of `hosts`, or the address that they have reached; forms must come from
    there too, or from one of `origins` (`https://bus.example.com`), whose host counts as reached by TLS.
    With a `token` each browser must enter it once; without one the application around it decides who may
    see the pages. `reports` is a directory: the pages that `agentbus report --html` has written into it are
    listed and shown. With `all_projects` a switcher leads to the pages of the server's other projects that
    its ACL lets this user read, on which the forms act, too. Raises `ConfigError` without the extra `web`,
    and for a token of less than 16 characters, and `UsageError` for a bus that is not asynchronous.
    """
    if not isinstance(bus, Awaiting):
        raise UsageError(
            f"the dashboard was given {bus!r}, which would block its event loop",
            hint="give it one of agentbus.aio.connect()",
        )
    try:
        from agentbus.dashboard.web import application  # needs the extra `web`
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the dashboard needs {error.name}, which is not installed: it comes with an extra",
            hint="pip install 'agentbus-toolkit[web]'",
        ) from None
    return application(
        bus,
        write=write,
        person=person,
        token=token,
        hosts=hosts,
        origins=origins,
        reports=reports,
        all_projects=all_projects,
    )
