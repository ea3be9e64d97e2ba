"""The names of a project's queues; those of other programs are found by occasional scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.admin import stats
from agentbus.dashboard.parts import SELDOM, Part
from agentbus.store.failures import or_empty
from agentbus.store.scan import members
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class QueueNames:
    """The names of the queues, in order; a new queue of the bus is found at once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.all: Part[tuple[list[str], Any]] = Part(
            scope.monotonic, lambda: stats.known_queues(scope), SELDOM
        )
        self._found: list[str] = []
        self._names: list[str] = []
        self._state: object = None

    def read(self) -> Op[list[str]]:
        """Return the names of all queues, sorted."""
        key = self._scope.keys.queues
        # Before the names, read their number and the newest name with the time of its first task.
        state = yield Batch([("ZCARD", key), ("ZREVRANGE", key, 0, 0, "WITHSCORES")])
        found, _ = yield from self.all.get()
        if found is not self._found:
            self._found, self._names = found, found
        elif state != self._state:
            registered = yield from or_empty(members(key), [])
            self._names = sorted({*found, *registered})
        self._state = state
        return self._names
