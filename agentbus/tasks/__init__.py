"""Typed tasks, schedules and flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.tasks.schedule_record import (
        Definition as Definition,
        ScheduleState as ScheduleState,
    )
    from agentbus.tasks.scheduler import Scheduler as Scheduler
    from agentbus.tasks.schedules import Schedules as Schedules, Synced as Synced
    from agentbus.tasks.ticks import Tick as Tick

_HOMES = {
    **dict.fromkeys(("Definition", "ScheduleState"), "schedule_record"),
    **dict.fromkeys(("Schedules", "Synced"), "schedules"),
    "Scheduler": "scheduler",
    "Tick": "ticks",
}
__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
