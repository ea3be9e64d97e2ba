"""What goes wrong with talk beyond the usual: a listener that sleeps until it was trimmed behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from agentbus.torture.history import OK, Entry, Scribe
from agentbus.torture.nemesis import Client, Nemesis
from agentbus.torture.server import Server
from agentbus.torture.talk.agent import GAP, SPEAK
from agentbus.torture.talk.plan import OVERTAKE, Plan

# The server trims by whole nodes of its streams, of a hundred entries.
_NODES = 250
# Some messages are refused, or come to an end that is unknown.
_ROOM = 1.5


class Trouble(Nemesis):
    """Freezes one agent at a time until the others have said more than the channel holds."""

    def __init__(
        self,
        plan: Plan,
        wanted: dict[str, int],
        seed: int,
        clients: Sequence[Client],
        server: Server | None,
        meanwhile: Callable[[], None],
        log: Scribe,
    ) -> None:
        """`meanwhile` is done at every tick; `log` is where the faults are written down."""
        super().__init__(wanted, plan.gap, seed, clients, server)
        self.acts[OVERTAKE] = self.overtake
        self._bound = plan.bound
        self._loses = plan.loses
        self._meanwhile = meanwhile
        self._log = log
        self._asleep: Client | None = None
        self._wakes_at = self._spoken = 0
        self._awaited: str | None = None

    @property
    def needs(self) -> float:
        """How many messages each agent must keep for the others to overtake all that they still are to."""
        others = len(self.clients) - 1
        return self._left.count(OVERTAKE) * _ROOM * (self._bound + _NODES) / others

    def tick(self) -> None:
        """Go on, and wake who was overtaken."""
        if self._asleep is not None and self._spoken >= self._wakes_at:
            self._wake()
        super().tick()
        self._meanwhile()

    def end(self) -> None:
        """Leave nobody asleep."""
        if self._asleep is not None:
            self._wake()
        super().end()

    def saw(self, entry: Entry) -> None:
        """Count what is said, and the gap that was told to whom one had overtaken."""
        if entry.op == SPEAK and entry.phase == OK:
            self._spoken += 1
        elif entry.op == GAP and entry.who == self._awaited:
            self._awaited = None
            self.proven(OVERTAKE)

    def did(self, kind: str, outcome: bool | None) -> None:
        """Write down what was done, for who looks for the cause of a violation."""
        if outcome is not False:
            self._log.note(kind, OK, server=self._server_is)

    def lose_reply(self) -> bool | None:
        """Have nobody learn of what the server did, for requests of one kind if the plan says so."""
        if not self._loses:
            return super().lose_reply()
        one = self.victim()
        if one is None or one.proxies[0].loses:
            return False
        one.proxies[0].loses = self._loses
        return True

    def overtake(self) -> bool | None:
        """Stop one until its cursor lies before the oldest entry."""
        one = self.victim()
        if one is None or self._awaited is not None:
            return False
        one.send(signal.SIGSTOP)
        one.frozen = True
        self._asleep, self._awaited = one, one.name
        self._wakes_at = self._spoken + self._bound + _NODES
        return None

    def _wake(self) -> None:
        assert self._asleep is not None
        self._asleep.frozen = False
        self._asleep.send(signal.SIGCONT)
        self._asleep = None
