"""The agents of a project: each snapshot reads active agents, and some of the others in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.coordination import presence
from agentbus.coordination.presence import AT_ONCE, KEPT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.coordination.presence import Presence
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum pages of 100 agents per snapshot: of agents active since the last snapshot, of the turn
# through all agents, and of the first turn.
_ACTIVE, _TURN, _ALL = 3, 1, 10**6


class PresenceList:
    """The agents that are present, last seen first.

    An agent that was active is read with the next snapshot. No record shows whose inbox has
    changed, so the unread messages of other agents are read in turns, a few hundred agents with
    each snapshot.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        # The presence of each agent when it was last read, and the time at which it had last been
        # seen.
        self._known: dict[str, Presence] = {}
        self._seen: dict[str, float] = {}
        # Where the turn continues by rank, the agents that it has met, and when each of its pages
        # was read.
        self._at = 0
        self._met: set[str] = set()
        self._read_at: dict[int, float] = {}
        self._missed = False

    def read(self, now: float, known: int) -> Op[list[Presence]]:
        """Return the agents present at the server's time, of `known` agents in all."""
        if self._at >= known:
            # The number of agents has fallen, for example after `clear`.
            self._begin()
        if len(self._read_at) > _TURN:
            yield from self._read_active()
        pages = _TURN if self._known else _ALL
        while pages and not (yield from self._read_page(now, known)):
            pages -= 1
        there = (one for one in self._known.values() if presence.is_there(one, now))
        return sorted(there, key=lambda one: -one.seen)

    def read_again(self, agents: Sequence[Presence]) -> Op[list[Presence]]:
        """Read these agents again, and return them."""
        names = [one.agent for one in agents]
        if len(self._read_at) > _TURN:
            yield from self._look([(one, self._seen[one]) for one in names])
        return [self._known[one] for one in names]

    def unread(self, agents: Sequence[Presence]) -> int:
        """Return the number of these agents' unread messages, as last read."""
        return sum(self._known[one.agent].unread for one in agents)

    @property
    def age(self) -> float:
        """The seconds since the oldest part of the list was read."""
        oldest = min(self._read_at.values(), default=float("-inf"))
        return max(0.0, self._scope.monotonic() - oldest)

    def _read_active(self) -> Op[None]:
        """Read the agents seen since the last snapshot, which are the first by rank."""
        for at in range(0, _ACTIVE * AT_ONCE, AT_ONCE):
            page = yield from presence.listed(self._scope, at)
            active = [(agent, last) for agent, last in page if self._seen.get(agent) != last]
            yield from self._look(active)
            self._met.update(agent for agent, _ in active)
            if len(active) < AT_ONCE:
                return
        # Other agents may have moved from ranks that the turn has not read to ranks that it has.
        self._missed = True

    def _read_page(self, now: float, known: int) -> Op[bool]:
        """Read the next page of the turn; return whether it was the last one."""
        page = yield from presence.listed(self._scope, self._at)
        yield from self._look(page)
        self._met.update(agent for agent, _ in page)
        self._read_at[self._at] = self._scope.monotonic()
        self._at += AT_ONCE
        if len(page) == AT_ONCE and self._at < known and page[-1][1] >= now - KEPT:
            return False
        if not self._missed:
            for agent in self._known.keys() - self._met:
                del self._known[agent], self._seen[agent]
        self._read_at = {at: when for at, when in self._read_at.items() if at < self._at}
        self._begin()
        return True

    def _begin(self) -> None:
        self._at, self._missed = 0, False
        self._met.clear()

    def _look(self, agents: Sequence[tuple[str, float]]) -> Op[None]:
        for at in range(0, len(agents), AT_ONCE):
            page = agents[at : at + AT_ONCE]
            _, found = yield from presence.read(self._scope, page)
            self._known.update((one.agent, one) for one in found)
            self._seen.update(page)
