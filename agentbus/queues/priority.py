"""The priorities of tasks as an enumeration."""

from __future__ import annotations

from enum import StrEnum


class Priority(StrEnum):
    """The priority of a task; each is a separate stream, and they are read in this order."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
