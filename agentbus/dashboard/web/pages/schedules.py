"""The schedules, those due first at the top: when each is due, and what its last tick published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.errors import UsageError
from agentbus.dashboard.web.page import PageView, WebPage

if TYPE_CHECKING:
    from agentbus.tasks.schedule_record import ScheduleState

# Seconds after which a due schedule is overdue: a running scheduler publishes it within one or two.
_LATE = 10.0


async def load(view: PageView) -> dict[str, Any]:
    """Return the requested schedules, each with its next two due times."""
    found = await view.shared(("schedules", view.rows), lambda: view.reader.schedules(view.rows))
    late = [one for one in found.schedules if one.due is not None and one.due < view.now - _LATE]
    return {"found": found, "late": late, "later": later}


def later(schedule: ScheduleState) -> list[float]:
    """Return the two due times after the next one."""
    try:
        return schedule.upcoming(3)[1:]
    except UsageError:
        # This host does not know the schedule's time zone.
        return []


PAGE = WebPage("schedules", "Schedules", load, live=("list",))
