"""AgentBus: many agents working together through one Redis."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus import aio as aio
    from agentbus.admin.agents import Attendee as Attendee
    from agentbus.admin.entries import Entry as Entry
    from agentbus.admin.health.findings import Health as Health, HealthFinding as HealthFinding
    from agentbus.admin.metrics_reader import Metrics as Metrics
    from agentbus.admin.pause import Dismissal as Dismissal, Order as Order
    from agentbus.admin.project import Presence as Presence, Topic as Topic
    from agentbus.admin.stats import (
        Group as Group,
        GroupConsumer as Consumer,  # noqa: F401
        QueueStats as QueueStats,
        StreamInfo as StreamInfo,
    )
    from agentbus.aio import AsyncBus as AsyncBus
    from agentbus.client.bus import Bus as Bus, connect as connect
    from agentbus.client.queue import Queue as Queue
    from agentbus.coordination.flags import FlagState as FlagState, Hold as Hold
    from agentbus.coordination.message import Message as Message
    from agentbus.coordination.notes import Note as Note
    from agentbus.coordination.wait import Completion as Completion
    from agentbus.core.errors import (
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
    from agentbus.core.version import __version__ as __version__
    from agentbus.queues.dead_letters import Letter as Letter
    from agentbus.queues.delivery import Delivery as Delivery
    from agentbus.queues.ids import Priority as Priority
    from agentbus.queues.policy import Policy as Policy
    from agentbus.queues.publish import Task as Task
    from agentbus.queues.retry import Backoff as Backoff, Bury as Bury, Retry as Retry
    from agentbus.workers.async_worker import AsyncWorker as AsyncWorker
    from agentbus.workers.metrics import Durations as Durations
    from agentbus.workers.registry import Registered as Registered
    from agentbus.workers.worker import Worker as Worker

# Loaded when first used: a shell verb must not pay for what it does not touch.
_HOMES = {
    # The bus
    "connect": "client.bus",
    "Bus": "client.bus",
    "AsyncBus": "client.aio",
    # Values
    "Backoff": "queues.retry",
    "Bury": "queues.retry",
    "Completion": "coordination.wait",
    "Delivery": "queues.delivery",
    "FlagState": "coordination.flags",
    "Hold": "coordination.flags",
    "Message": "coordination.message",
    "Note": "coordination.notes",
    "Presence": "admin.project",
    "Retry": "queues.retry",
    "Topic": "admin.project",
    "Letter": "queues.dead_letters",
    "Policy": "queues.policy",
    "Priority": "queues.ids",
    "Queue": "client.queue",
    "AsyncWorker": "workers.async_worker",
    "Task": "queues.publish",
    "Worker": "workers.worker",
    # Figures
    "Consumer": "admin.stats:GroupConsumer",
    "Durations": "workers.metrics",
    "Entry": "admin.entries",
    "Group": "admin.stats",
    "Health": "admin.health.findings",
    "HealthFinding": "admin.health.findings",
    "Metrics": "admin.metrics_reader",
    "QueueStats": "admin.stats",
    "StreamInfo": "admin.stats",
    "Dismissal": "admin.pause",
    "Order": "admin.pause",
    "Attendee": "admin.agents",
    "Registered": "workers.registry",
    # Errors
    "AgentBusError": "core.errors",
    "BackendUnavailable": "core.errors",
    "CommitInTransactionError": "core.errors",
    "ConfigError": "core.errors",
    "EpochMismatch": "core.errors",
    "EventsLost": "core.errors",
    "FlagHeld": "core.errors",
    "HandlerFailed": "core.errors",
    "InvalidName": "core.errors",
    "InvalidPayload": "core.errors",
    "NoteExists": "core.errors",
    "NotFound": "core.errors",
    "NotHolder": "core.errors",
    "OutcomeUnknown": "core.errors",
    "QueueFull": "core.errors",
    "Refused": "core.errors",
    "StaleDelivery": "core.errors",
    "ReplayTooOld": "core.errors",
    "StaleLease": "core.errors",
    "TaskBuried": "core.errors",
    "TaskFailed": "core.errors",
    "TimedOut": "core.errors",
    "Unhealthy": "core.errors",
    "UnknownBackend": "core.errors",
    "UsageError": "core.errors",
}
__all__ = ["aio", *_HOMES]
_HOMES["__version__"] = "core.version"


def __getattr__(name: str) -> object:
    # `from agentbus import channel` asks here first: answer before loading anything.
    if name != "aio" and name not in _HOMES:
        raise AttributeError(f"module 'agentbus' has no attribute {name!r}")
    from importlib import import_module

    if name == "aio":
        return import_module("agentbus.aio")
    home, _, own = _HOMES[name].partition(":")
    found = getattr(import_module(f"agentbus.{home}"), own or name)
    globals()[name] = found
    return found
