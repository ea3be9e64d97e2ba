"""AgentBus: many agents working together through one Redis."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus import aio as aio
    from agentbus.aio import AsyncBus as AsyncBus
    from agentbus.awaiting import Completion as Completion
    from agentbus.bus import Bus as Bus
    from agentbus.bus import connect as connect
    from agentbus.errors import (
        AgentBusError as AgentBusError,
    )
    from agentbus.errors import (
        BackendUnavailable as BackendUnavailable,
    )
    from agentbus.errors import (
        ConfigError as ConfigError,
    )
    from agentbus.errors import (
        EpochMismatch as EpochMismatch,
    )
    from agentbus.errors import (
        EventsLost as EventsLost,
    )
    from agentbus.errors import (
        FlagHeld as FlagHeld,
    )
    from agentbus.errors import (
        InvalidName as InvalidName,
    )
    from agentbus.errors import (
        InvalidPayload as InvalidPayload,
    )
    from agentbus.errors import (
        NoteExists as NoteExists,
    )
    from agentbus.errors import (
        NotFound as NotFound,
    )
    from agentbus.errors import (
        NotHolder as NotHolder,
    )
    from agentbus.errors import (
        OutcomeUnknown as OutcomeUnknown,
    )
    from agentbus.errors import (
        QueueFull as QueueFull,
    )
    from agentbus.errors import (
        Refused as Refused,
    )
    from agentbus.errors import (
        StaleDelivery as StaleDelivery,
    )
    from agentbus.errors import (
        TimedOut as TimedOut,
    )
    from agentbus.errors import (
        Unhealthy as Unhealthy,
    )
    from agentbus.errors import (
        UnknownBackend as UnknownBackend,
    )
    from agentbus.errors import (
        UsageError as UsageError,
    )
    from agentbus.flags import FlagState as FlagState
    from agentbus.flags import Hold as Hold
    from agentbus.inspector import Presence as Presence
    from agentbus.inspector import Topic as Topic
    from agentbus.message import Message as Message
    from agentbus.notebook import Note as Note

__version__ = "0.1.0"

# Loaded when first used: a shell verb must not pay for what it does not touch.
_HOMES = {
    # The bus
    "connect": "bus",
    "Bus": "bus",
    "AsyncBus": "aio",
    # Values
    "Completion": "awaiting",
    "FlagState": "flags",
    "Hold": "flags",
    "Message": "message",
    "Note": "notebook",
    "Presence": "inspector",
    "Topic": "inspector",
    # Errors
    "AgentBusError": "errors",
    "BackendUnavailable": "errors",
    "ConfigError": "errors",
    "EpochMismatch": "errors",
    "EventsLost": "errors",
    "FlagHeld": "errors",
    "InvalidName": "errors",
    "InvalidPayload": "errors",
    "NoteExists": "errors",
    "NotFound": "errors",
    "NotHolder": "errors",
    "OutcomeUnknown": "errors",
    "QueueFull": "errors",
    "Refused": "errors",
    "StaleDelivery": "errors",
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
