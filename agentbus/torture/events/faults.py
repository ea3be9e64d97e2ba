"""Faults of events: deaths at named steps, leases outlived, databases that crash."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from agentbus.events import kill_points
from agentbus.torture.events.controls import is_wrong
from agentbus.torture.events.database import Database
from agentbus.torture.events.plan import ACT, DATABASE, READY, RELAY, STOPS, EventsPlan
from agentbus.torture.history import DIES, HistoryEntry
from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import FREEZE, KILL, OUTAGES, Client, Fault, Nemesis, Steps, lasting
from agentbus.torture.server import DisposableServer
from agentbus.torture.workload import Workload

_BUSY, _ARMED, _TRUNCATED = 0.8, 0.3, 0.4
_PARKED = "consumer.parked"  # Nothing is parked here.


class HurtShop(Workload):
    """Hurts mostly relays and consumers that work, some of which are armed to kill themselves.

    Wrong parts are armed to hurt themselves at their worst moment, and nothing else happens to them.
    """

    mode = "events"

    def __init__(
        self, plan: EventsPlan, trial: Trial, database: Database, server: DisposableServer | None
    ) -> None:
        super().__init__(trial, server)
        self.plan, self.database = plan, database
        # Relays and consumers by the name of the process; others send events.
        self.roles = plan.roles()
        # The processes that have begun to work; SIGTERM ends others as it ends any program.
        self.ready: set[str] = set()
        # No work is left, and any process can be hurt.
        self.exhausted = False
        self.at_steps = self.overtaken = 0
        # The processes that have done something since they were started.
        self._busy: set[str] = set()
        # The wrong parts that have stopped themselves, and who acted last.
        self._stopped: list[str] = []
        self._acted = ""

    def new_nemesis(self, wanted: Mapping[str, int], gap: float) -> Nemesis:
        if self.database.server is None:
            wanted = {kind: number for kind, number in wanted.items() if kind != DATABASE}
        found = super().new_nemesis(wanted, gap)
        found.loses_tail = _TRUNCATED
        return found

    def own_faults(self) -> Mapping[str, Fault]:
        if self.plan.control is not None:
            return {KILL: lambda: False, FREEZE: self._overtake}
        return {FREEZE: self._freeze, DATABASE: self._restart_database}

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == READY:
            self.ready.add(entry.who)
        elif entry.op == DIES:
            self.at_steps += self.nemesis.happened(KILL)
        elif entry.op == STOPS:
            self._stopped.append(entry.who)
        else:
            self._busy.add(entry.who)
            if entry.op == ACT:
                self._acted = entry.who

    def start_anew(self, client: Client) -> None:
        """Take a process for new."""
        self.ready.discard(client.name)
        self._busy.discard(client.name)

    def fit(self, client: Client) -> bool:
        """Hurt mostly those that have worked, and sometimes one that waits to take over."""
        return client.name in self.ready and (
            self._works(client) or self.nemesis.chance.random() > _BUSY
        )

    def _works(self, client: Client) -> bool:
        return self.exhausted or client.name in self._busy

    def arm(self, role: str) -> str | None:
        """Return what the next process in a role is to do to itself, or None."""
        nemesis, control = self.nemesis, self.plan.control
        if control is not None:
            found = [kind for kind in (KILL, FREEZE) if kind in nemesis.wanted]
            return found[0] if is_wrong(control, role) and nemesis.done == 0 and found else None
        if not nemesis.left(KILL) or nemesis.chance.random() >= _ARMED:
            return None
        steps = kill_points.RELAY if role == RELAY else kill_points.CONSUMER
        step = nemesis.chance.choice([each for each in steps if each != _PARKED])
        return f"{step}:{1 if step.endswith('leased') else nemesis.chance.randint(1, 3)}"

    def _freeze(self) -> Steps:
        """Stop one that may have a lease for longer than the lease lasts."""
        nemesis = self.nemesis
        found = [x for x in nemesis.victims() if x.name in self.roles and self._works(x)]
        one = nemesis.one_of(found)
        if one is not None:
            role = self.roles[one.name]
            before = self.database.tokens(role)
            # Processes that wait to take over look once a second.
            seconds = self.plan.lease * nemesis.chance.uniform(1.1, 1.6) + 1.0
            yield from nemesis.freeze(one, seconds)
            self.overtaken += self.database.tokens(role) > before

    def _restart_database(self) -> Steps:
        """Stop PostgreSQL, half the time as in a crash, and start it a little later."""
        server, chance = self.database.server, self.nemesis.chance
        if server is not None and server.runs:
            server.stop(crash=chance.random() < 0.5)
            yield from lasting(chance.choice(OUTAGES), server.start)

    def _overtake(self) -> Steps:
        """Let a wrong part that has stopped itself go on when another one has acted."""
        while not self._stopped:
            yield False
        first = self._acted = self._stopped.pop()
        go_on = self._hold(first)
        try:
            while self._acted == first:
                while self._stopped:
                    self._hold(self._stopped.pop())()
                yield False
            yield True
        finally:
            go_on()

    def _hold(self, name: str) -> Callable[[], None]:
        """Keep a process stopped that stops itself; returns what lets it go on."""
        client = self.client(name)
        assert client.process is not None
        # It writes this before it stops, and must not be let go before.
        os.waitid(os.P_PID, client.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return client.freeze()
