"""The leases of a project, decoded again only after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.coordination import leases
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from agentbus.coordination.leases import Lease
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class LeaseList:
    """The leases in force, by pattern and agent."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._stored: Any = None
        self._leases: list[Lease] = []

    def read(self, now: float) -> Op[list[Lease]]:
        """Return the leases in force at the server's time `now`."""
        (stored,) = yield Batch([("HGETALL", self._scope.keys.leases)])
        # It costs the server five times as much to decode the leases as to send them. An error is
        # not cached.
        if self._stored is None or stored != self._stored:
            # The check `foreign_key` reports a key that another program wrote.
            self._leases = yield from or_empty(leases.leases(self._scope), [])
            self._stored = stored if isinstance(stored, (list, dict)) else None
        return [one for one in self._leases if one.until > now]
