"""AgentBus: many agents working together through one Redis."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus import aio as aio
    from agentbus.aio import AsyncBus as AsyncBus
    from agentbus.attendance import Attendee as Attendee
    from agentbus.awaiting import Completion as Completion
    from agentbus.aworker import AsyncWorker as AsyncWorker
    from agentbus.bus import Bus as Bus, connect as connect
    from agentbus.delivery import Delivery as Delivery
    from agentbus.entries import Entry as Entry
    from agentbus.errors import (
        AgentBusError as AgentBusError,
        BackendUnavailable as BackendUnavailable,
        CommitInTransactionError as CommitInTransactionError,
        ConfigError as ConfigError,
        EpochMismatch as EpochMismatch,
        EventsLost as EventsLost,
        FlagHeld as FlagHeld,
        HandlerFailed as HandlerFailed,
        InvalidName as InvalidName,
        InvalidPayload as InvalidPayload,
        NoteExists as NoteExists,
        NotFound as NotFound,
        NotHolder as NotHolder,
        OutcomeUnknown as OutcomeUnknown,
        QueueFull as QueueFull,
        Refused as Refused,
        ReplayTooOld as ReplayTooOld,
        StaleDelivery as StaleDelivery,
        StaleLease as StaleLease,
        TaskBuried as TaskBuried,
        TaskFailed as TaskFailed,
        TimedOut as TimedOut,
        Unhealthy as Unhealthy,
        UnknownBackend as UnknownBackend,
        UsageError as UsageError,
    )
    from agentbus.figures import (
        Consumer as Consumer,
        Group as Group,
        QueueStats as QueueStats,
        StreamInfo as StreamInfo,
    )
    from agentbus.flags import FlagState as FlagState, Hold as Hold
    from agentbus.health.findings import Health as Health, HealthFinding as HealthFinding
    from agentbus.inspector import Presence as Presence, Topic as Topic
    from agentbus.letters import Letter as Letter
    from agentbus.message import Message as Message
    from agentbus.metrics import Durations as Durations
    from agentbus.notebook import Note as Note
    from agentbus.pausing import Dismissal as Dismissal, Order as Order
    from agentbus.policy import Policy as Policy
    from agentbus.presence import Registered as Registered
    from agentbus.publishing import Task as Task
    from agentbus.queue import Priority as Priority
    from agentbus.queues import Queue as Queue
    from agentbus.retry import Backoff as Backoff, Bury as Bury, Retry as Retry
    from agentbus.samples import Metrics as Metrics
    from agentbus.worker import Worker as Worker

__version__ = "0.1.0"

# Loaded when first used: a shell verb must not pay for what it does not touch.
_HOMES = {
    # The bus
    "connect": "bus",
    "Bus": "bus",
    "AsyncBus": "aio",
    # Values
    "Backoff": "retry",
    "Bury": "retry",
    "Completion": "awaiting",
    "Delivery": "delivery",
    "FlagState": "flags",
    "Hold": "flags",
    "Message": "message",
    "Note": "notebook",
    "Presence": "inspector",
    "Retry": "retry",
    "Topic": "inspector",
    "Letter": "letters",
    "Policy": "policy",
    "Priority": "queue",
    "Queue": "queues",
    "AsyncWorker": "aworker",
    "Task": "publishing",
    "Worker": "worker",
    # Figures
    "Consumer": "figures",
    "Durations": "metrics",
    "Entry": "entries",
    "Group": "figures",
    "Health": "health.findings",
    "HealthFinding": "health.findings",
    "Metrics": "samples",
    "QueueStats": "figures",
    "StreamInfo": "figures",
    "Dismissal": "pausing",
    "Order": "pausing",
    "Attendee": "attendance",
    "Registered": "presence",
    # Errors
    "AgentBusError": "errors",
    "BackendUnavailable": "errors",
    "CommitInTransactionError": "errors",
    "ConfigError": "errors",
    "EpochMismatch": "errors",
    "EventsLost": "errors",
    "FlagHeld": "errors",
    "HandlerFailed": "errors",
    "InvalidName": "errors",
    "InvalidPayload": "errors",
    "NoteExists": "errors",
    "NotFound": "errors",
    "NotHolder": "errors",
    "OutcomeUnknown": "errors",
    "QueueFull": "errors",
    "Refused": "errors",
    "StaleDelivery": "errors",
    "ReplayTooOld": "errors",
    "StaleLease": "errors",
    "TaskBuried": "errors",
    "TaskFailed": "errors",
    "TimedOut": "errors",
    "Unhealthy": "errors",
    "UnknownBackend": "errors",
    "UsageError": "errors",
}
__all__ = ["aio", *_HOMES]


def __getattr__(name: str) -> object:
    # `from agentbus import channel` asks here first: answer before loading anything.
    if name not in __all__:
        raise AttributeError(f"module 'agentbus' has no attribute {name!r}")
    from importlib import import_module

    if name == "aio":
        return import_module("agentbus.aio")
    found = getattr(import_module(f"agentbus.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
