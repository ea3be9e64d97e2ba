"""AgentBus: a coordination bus and task queue on Redis streams."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus import aio as aio
    from agentbus.admin.agents import Attendee as Attendee
    from agentbus.admin.delete import Deleted as Deleted
    from agentbus.admin.health.findings import Health as Health, HealthFinding as HealthFinding
    from agentbus.admin.metrics_reader import Metrics as Metrics
    from agentbus.admin.pause import Dismissal as Dismissal, Order as Order
    from agentbus.admin.project import AgentActivity as AgentActivity, Topic as Topic
    from agentbus.admin.projects import Project as Project, Projects as Projects
    from agentbus.admin.stats import QueueStats as QueueStats, StreamInfo as StreamInfo
    from agentbus.admin.survey import Group as Group, GroupConsumer as Consumer  # noqa: F401
    from agentbus.aio import AsyncBus as AsyncBus
    from agentbus.client.bus import Bus as Bus, connect as connect
    from agentbus.client.queue import Queue as Queue
    from agentbus.coordination.approval import Approval as Approval
    from agentbus.coordination.flags import FlagState as FlagState, Hold as Hold
    from agentbus.coordination.hold import Leasing as Leasing
    from agentbus.coordination.inbox import InboxMessage as InboxMessage
    from agentbus.coordination.leases import Lease as Lease
    from agentbus.coordination.message import Message as Message
    from agentbus.coordination.notes import Note as Note
    from agentbus.coordination.presence import Presence as Presence
    from agentbus.coordination.presence_wait import AgentState as AgentState
    from agentbus.coordination.receipts import Receipt as Receipt
    from agentbus.coordination.tell import Sent as Sent
    from agentbus.coordination.wait import Completion as Completion
    from agentbus.coordination.waiters import Waiter as Waiter
    from agentbus.core.errors import *  # noqa: F403
    from agentbus.core.version import __version__ as __version__
    from agentbus.queues.by_hand import (
        HeldTask as HeldTask,
        SettledTask as SettledTask,
        TakenTask as TakenTask,
    )
    from agentbus.queues.dead_letters import Letter as Letter
    from agentbus.queues.delivery import AsyncDelivery as AsyncDelivery, Delivery as Delivery
    from agentbus.queues.policy import Policy as Policy
    from agentbus.queues.publish import Priority as Priority
    from agentbus.queues.retry import (
        Backoff as Backoff,
        Bury as Bury,
        Retry as Retry,
        Snooze as Snooze,
    )
    from agentbus.queues.state import Entry as Entry
    from agentbus.queues.task import Task as Task
    from agentbus.tasks.registry import Tasks as Tasks
    from agentbus.workers.async_worker import (
        AsyncMatchWorker as AsyncMatchWorker,
        AsyncWorker as AsyncWorker,
    )
    from agentbus.workers.match import MatchWorker as MatchWorker
    from agentbus.workers.metrics import Durations as Durations
    from agentbus.workers.registry import Registered as Registered
    from agentbus.workers.worker import Worker as Worker

# Names are imported on first use, so that a shell command imports only what it needs.
_HOMES = {
    # The bus
    **dict.fromkeys(("connect", "Bus"), "client.bus"),
    "AsyncBus": "client.aio",
    "Queue": "client.queue",
    **dict.fromkeys(("AsyncMatchWorker", "AsyncWorker"), "workers.async_worker"),
    "MatchWorker": "workers.match",
    "Worker": "workers.worker",
    "Tasks": "tasks.registry",
    # Values
    **dict.fromkeys(("Backoff", "Bury", "Retry", "Snooze"), "queues.retry"),
    "Completion": "coordination.wait",
    "Waiter": "coordination.waiters",
    **dict.fromkeys(("AsyncDelivery", "Delivery"), "queues.delivery"),
    **dict.fromkeys(("FlagState", "Hold"), "coordination.flags"),
    **dict.fromkeys(("HeldTask", "SettledTask", "TakenTask"), "queues.by_hand"),
    "InboxMessage": "coordination.inbox",
    "Lease": "coordination.leases",
    "Leasing": "coordination.hold",
    "Message": "coordination.message",
    "Receipt": "coordination.receipts",
    "Sent": "coordination.tell",
    "Note": "coordination.notes",
    "Approval": "coordination.approval",
    "AgentState": "coordination.presence_wait",
    "Presence": "coordination.presence",
    "Letter": "queues.dead_letters",
    "Policy": "queues.policy",
    "Priority": "queues.publish",
    "Task": "queues.task",
    # Statistics
    "Attendee": "admin.agents",
    "Consumer": "admin.survey:GroupConsumer",
    "Deleted": "admin.delete",
    **dict.fromkeys(("Dismissal", "Order"), "admin.pause"),
    "Durations": "workers.metrics",
    "Entry": "queues.state",
    "Group": "admin.survey",
    **dict.fromkeys(("QueueStats", "StreamInfo"), "admin.stats"),
    **dict.fromkeys(("Health", "HealthFinding"), "admin.health.findings"),
    "Metrics": "admin.metrics_reader",
    **dict.fromkeys(("AgentActivity", "Topic"), "admin.project"),
    **dict.fromkeys(("Project", "Projects"), "admin.projects"),
    "Registered": "workers.registry",
    **dict.fromkeys(
        (
            *("AgentBusError", "BackendUnavailable", "CommitInTransactionError", "ConfigError"),
            *(
                "EpochMismatch",
                "EventsLost",
                "FlagFailed",
                "FlagHeld",
                "SemaphoreFull",
                "ForeignLedger",
                "HandlerFailed",
                "InvalidName",
            ),
            *(
                "InboxFull",
                "InvalidPayload",
                "LeaseHeld",
                "LeasesFull",
                "NoSuchAgent",
                "NoteExists",
            ),
            *("NotFound", "NotHolder", "OutcomeUnknown", "QueueFull", "Refused", "ReplayTooOld"),
            *("Sandboxed", "StaleDelivery", "StaleLease", "StaleToken", "TooManyMessages"),
            *("TaskBuried", "TaskCancelled", "TaskFailed", "TimedOut", "Unhealthy"),
            *("UnknownBackend", "UsageError"),
        ),
        "core.errors",
    ),
}
__all__ = ["aio", *_HOMES]
_HOMES["__version__"] = "core.version"


def __getattr__(name: str) -> object:
    # `from agentbus import channel` calls this first: reject unknown names before importing
    # anything.
    if name != "aio" and name not in _HOMES:
        raise AttributeError(f"module 'agentbus' has no attribute {name!r}")
    from importlib import import_module

    if name == "aio":
        return import_module("agentbus.aio")
    home, _, own = _HOMES[name].partition(":")
    found = getattr(import_module(f"agentbus.{home}"), own or name)
    globals()[name] = found
    return found
