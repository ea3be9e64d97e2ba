"""The package of typed tasks, schedules and flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.queues.limits import QueueLimit as QueueLimit
    from agentbus.tasks.flow_record import (
        Flow as Flow,
        FlowState as FlowState,
        FlowTask as FlowTask,
        FlowTaskState as FlowTaskState,
        chain as chain,
        group as group,
    )
    from agentbus.tasks.flows import Flows as Flows
    from agentbus.tasks.handle import AsyncHandle as AsyncHandle, Handle as Handle
    from agentbus.tasks.limits import Limits as Limits
    from agentbus.tasks.options import TaskOptions as TaskOptions
    from agentbus.tasks.registry import Tasks as Tasks
    from agentbus.tasks.schedule_record import (
        Definition as Definition,
        ScheduleState as ScheduleState,
    )
    from agentbus.tasks.scheduler import Scheduler as Scheduler
    from agentbus.tasks.schedules import Schedules as Schedules, Synced as Synced
    from agentbus.tasks.ticks import Tick as Tick
    from agentbus.tasks.typed_task import Item as Item, TypedTask as TypedTask
    from agentbus.tasks.worker import AsyncTaskWorker as AsyncTaskWorker, TaskWorker as TaskWorker

_HOMES = {
    **dict.fromkeys(("AsyncHandle", "Handle"), "handle"),
    **dict.fromkeys(
        ("Flow", "FlowState", "FlowTask", "FlowTaskState", "chain", "group"), "flow_record"
    ),
    "Flows": "flows",
    "Limits": "limits",
    "QueueLimit": "agentbus.queues.limits",
    "TaskOptions": "options",
    "Tasks": "registry",
    **dict.fromkeys(("Definition", "ScheduleState"), "schedule_record"),
    **dict.fromkeys(("Schedules", "Synced"), "schedules"),
    "Scheduler": "scheduler",
    "Tick": "ticks",
    **dict.fromkeys(("Item", "TypedTask"), "typed_task"),
    **dict.fromkeys(("AsyncTaskWorker", "TaskWorker"), "worker"),
}
__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
