"""Faults of talk alone: an agent sleeps until the channel was trimmed past its cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentbus.torture.history import OK, HistoryEntry
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.server import DisposableServer
from agentbus.torture.talk.agent import GAP, SPEAK
from agentbus.torture.talk.plan import OVERTAKE, TalkPlan

# The server trims a stream by whole nodes, of a hundred entries.
_NODES = 250
# Some messages are refused, or have an unknown outcome.
_ROOM = 1.5


class TalkNemesis(Nemesis):
    """Freezes one agent at a time until the others have said more than the channel holds."""

    def __init__(
        self,
        plan: TalkPlan,
        wanted: dict[str, int],
        seed: int,
        clients: Sequence[Client],
        server: DisposableServer | None,
    ) -> None:
        super().__init__(wanted, plan.gap, seed, clients, server)
        self.acts[OVERTAKE] = self.overtake
        self._bound = plan.bound
        self._loses = plan.loses
        self._wake: Callable[[], None] | None = None
        self._wakes_at = self._spoken = 0
        self._awaited: str | None = None

    @property
    def needs(self) -> float:
        """How many messages each agent must keep back, for the others to overtake all that are left."""
        others = len(self.clients) - 1
        return self._left.count(OVERTAKE) * _ROOM * (self._bound + _NODES) / others

    def tick(self) -> None:
        if self._wake is not None and self._spoken >= self._wakes_at:
            self._wake()
            self._wake = None
        super().tick()

    def end(self) -> None:
        if self._wake is not None:
            self._wake()
        super().end()

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == SPEAK and entry.phase == OK:
            self._spoken += 1
        elif entry.op == GAP and entry.who == self._awaited:
            self._awaited = None
            self.proven(OVERTAKE)

    def lose_reply(self) -> bool | None:
        if not self._loses:
            return super().lose_reply()
        one = self.victim()
        if one is None or one.proxies[0].loses:
            return False
        one.proxies[0].loses = self._loses
        return True

    def overtake(self) -> bool | None:
        """Stop an agent until its cursor lies before the oldest entry."""
        one = self.victim()
        if one is None or self._awaited is not None:
            return False
        self._wake, self._awaited = one.freeze(), one.name
        self._wakes_at = self._spoken + self._bound + _NODES
        return None
