"""The health check of schedules: due ticks that no scheduler publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.health.findings import HealthFinding, span
from agentbus.core.names import word
from agentbus.core.stream import text
from agentbus.store.scope import server_time
from agentbus.store.steps import Command

if TYPE_CHECKING:
    from agentbus.admin.health.thresholds import Thresholds
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def examine(scope: Scope, thresholds: Thresholds) -> Op[list[HealthFinding]]:
    """Return a finding if the earliest due schedule is overdue for too long.

    A running scheduler postpones a schedule by one second each time a full queue refuses its task.
    """
    levels = thresholds.levels("overdue")
    first = yield Command("ZRANGE", scope.keys.schedules, 0, 0, "WITHSCORES")
    if not first or not levels.wanted:
        return []
    # Another program may have stored any number, even an infinite one.
    due = max(0.0, float(first[1]) / 1000)
    name, late = text(first[0]), (yield from server_time(scope)) - due
    crossed = levels.crossed(late)
    if crossed is None:
        return []
    return [
        HealthFinding(
            *("overdue", name, crossed[0], round(late, 3), crossed[1]),
            f"the schedule {word(name)} was due {span(late)} ago, and no scheduler has published it",
            "agentbus schedule run, which reports what it cannot publish",
        )
    ]
