"""The reports of relays and consumers: read once, then followed in the metrics stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.admin.health import events
from agentbus.dashboard.figures import EventReport
from agentbus.dashboard.parts import SELDOM, Part

if TYPE_CHECKING:
    from agentbus.admin.health.events import RoleReport
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    Reports = tuple[float, dict[tuple[str, str], RoleReport]]


class EventList:
    """The last report of each relay and each consumer."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        # Read the whole stream again from time to time: it may have lost entries.
        self.all: Part[Reports] = Part(scope.monotonic, lambda: events.last_reports(scope), SELDOM)
        self._found: dict[tuple[str, str], RoleReport] = {}
        self._until = 0.0

    def read(self) -> Op[tuple[EventReport, ...]]:
        """Return the reports, by stream and role."""
        now, found = yield from self.all.get()
        if found is not self._found:
            self._found = found
        else:
            # Read the reports of the last millisecond again.
            since = str(max(0, int(self._until * 1000)))
            now, newer = yield from events.last_reports(self._scope, since)
            for which, one in newer.items():
                before = found.get(which)
                if one.lag_ms is None and before is not None:
                    one.take_over(before)
                found[which] = one
        self._until = now
        return tuple(report_of(one, now) for one in events.recent(found.values(), now))


def report_of(one: events.RoleReport, now: float) -> EventReport:
    """Return a report for display at the server's time `now`."""
    age = max(0.0, now - one.at)
    return EventReport(one.stream, one.role, age, one.lag_events, one.lag_ms, one.parked, one.error)
