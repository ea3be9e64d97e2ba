"""Counts the leases refused in the last day because of another agent's overlapping lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.stream import id_time, is_number, text
from agentbus.dashboard.matching import backwards
from agentbus.store.failures import or_empty
from agentbus.store.scope import server_time
from agentbus.store.steps import Command, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

DAY, _HOUR, _HOURS = 86_400.0, 3_600.0, 24
# Maximum number of entries in a day: refusals are written at most once a second.
_MOST = 90_000
# Overlap of two readings in seconds: an entry may be written while the stream is read.
_OVERLAP = 5.0
_WANTED = {"kind": "refusal", "queue": "~leases"}


@dataclass(frozen=True, slots=True)
class Refusals:
    """The numbers of refused leases since a unix time, and in each of the last 24 hours, oldest first.

    `since` is a day ago, or later if the metrics stream begins later; the last hour is not complete.
    """

    number: int
    hours: tuple[int, ...]
    since: float


class RefusalTail:
    """The refusals of the last day, each of which is read once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._read_at = 0.0
        self._found: dict[str, int] = {}

    def read(self) -> Op[Refusals]:
        """Return the refusals of the last day."""
        scope = self._scope
        now = yield from server_time(scope)
        begins = max(now - DAY, self._read_at - _OVERLAP)
        key, since = scope.keys.metrics, f"{round(begins * 1000)}-0"
        entries, _ = yield from backwards(scope, key, _WANTED, since=since, limit=_MOST)
        self._read_at = now
        for entry in entries:
            refused = entry.fields.get("refused", "")
            self._found[entry.id] = int(refused) if is_number(refused) else 0
        first = one_step(Command("XRANGE", key, "-", "+", "COUNT", 1))
        oldest: Any = yield from or_empty(first, [])
        since_then = max(now - DAY, id_time(text(oldest[0][0])) if oldest else 0.0)
        # Drop refusals that were cleared or trimmed since they were read.
        self._found = {
            at: n for at, n in self._found.items() if oldest and id_time(at) >= since_then
        }
        hours = [0] * _HOURS
        for at, number in self._found.items():
            hours[-1 - min(_HOURS - 1, int(max(0.0, now - id_time(at)) // _HOUR))] += number
        return Refusals(sum(self._found.values()), tuple(hours), since_then)
