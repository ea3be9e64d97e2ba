"""Faults of events alone: deaths at named steps, leases outlived, databases that crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from agentbus.events import kill_points
from agentbus.torture.events.plan import ACT, DATABASE, READY, RELAY, STOPS
from agentbus.torture.events.postgres import Postgres
from agentbus.torture.history import HistoryEntry
from agentbus.torture.nemesis import FREEZE, KILL, OUTAGES, Client, Nemesis
from agentbus.torture.network import Proxy
from agentbus.torture.server import DisposableServer

_BUSY, _ARMED, _TRUNCATED = 0.8, 0.3, 0.4
_LARGEST_LOSS = 8000
# How many faults may happen before the work that goes with them.
_AHEAD = 3
_PARKED = "consumer.parked"  # Nothing is parked here.


class EventsNemesis(Nemesis):
    """A nemesis some of whose victims are armed to hurt themselves.

    While it `waits`, nothing happens; when it is `exhausted`, no work is left, and any process can be hurt.
    """

    waits = exhausted = False

    def arm(self, role: str) -> str | None:
        """Return what the next process in a role is to do to itself, or None."""
        raise NotImplementedError

    def begun(self, name: str) -> None:
        """Learn that a process is new."""

    def fell(self) -> None:
        """Count a process that died as it was armed to."""
        self.happened(KILL)

    def figures(self) -> dict[str, int]:
        """Return what happened besides the faults."""
        return {}


class Targets(NamedTuple):
    """What can be hurt besides the processes; `tokens` says how often a role's leases were taken.

    `ready` are the names of the processes that have begun to work.
    """

    server: DisposableServer | None
    postgres: Postgres | None
    tokens: Callable[[str], int]
    lease: float
    ready: Collection[str]


class ShopNemesis(EventsNemesis):
    """Hurts mostly relays and consumers that work; `roles` are theirs, by name. Others send events."""

    # Faults before all work would show nothing.
    waits = True

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        targets: Targets,
        roles: Mapping[str, str],
        allowed: Callable[[], float],
    ) -> None:
        """`allowed` is the share of the faults that may have happened by now."""
        super().__init__(wanted, gap, seed, clients, targets.server)
        self._targets = targets
        self._roles = roles
        self._allowed = allowed
        # The processes that have done something since they were started.
        self.busy: set[str] = set()
        self.at_steps = self.truncated = self.overtaken = 0
        self.acts[DATABASE] = self.restart_database

    def tick(self) -> None:
        """Go on as any nemesis does, once all work, and never far ahead of the work."""
        if self.waits or self.done > _AHEAD + self.total * self._allowed():
            self._next = time.monotonic() + self.gap
        super().tick()

    def arm(self, role: str) -> str | None:
        if not self.wants(KILL) or self.chance.random() >= _ARMED:
            return None
        mine = kill_points.RELAY if role == RELAY else kill_points.CONSUMER
        step = self.chance.choice([each for each in mine if each != _PARKED])
        return f"{step}:{1 if step.endswith('leased') else self.chance.randint(1, 3)}"

    def begun(self, name: str) -> None:
        self.busy.discard(name)

    def fell(self) -> None:
        self.at_steps += self.happened(KILL)

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op != READY:
            self.busy.add(entry.who)

    def figures(self) -> dict[str, int]:
        return {
            "killed_at_steps": self.at_steps,
            "lost_tails": self.truncated,
            "overtaken": self.overtaken,
        }

    def victims(self) -> list[Client]:
        """Return the clients that can be hurt now: those that have begun to work."""
        return [one for one in super().victims() if one.name in self._targets.ready]

    def victim(self) -> Client | None:
        """Choose mostly one that has worked, and sometimes one that waits to take over."""
        return self._one_of(self.victims(), anybody=self.chance.random() > _BUSY)

    def _one_of(self, found: list[Client], *, anybody: bool) -> Client | None:
        if not (anybody or self.exhausted):
            found = [one for one in found if one.name in self.busy]
        return self.chance.choice(found) if found else None

    def _proxy(self) -> Proxy | None:
        # A producer on a file has no proxy.
        found = [one for one in self.victims() if one.proxies]
        one = self._one_of(found, anybody=self.chance.random() > _BUSY)
        return None if one is None else self.chance.choice(one.proxies)

    def freeze(self) -> bool | None:
        """Stop one that may have a lease for longer than the lease lasts."""
        found = [one for one in self.victims() if one.name in self._roles]
        one = self._one_of(found, anybody=False)
        if one is None:
            return False
        role = self._roles[one.name]
        before = self._targets.tokens(role)
        thaw = one.freeze()

        def go_on() -> None:
            self.overtaken += self._targets.tokens(role) > before
            thaw()

        # Processes that wait to take over look once a second.
        self.after(self._targets.lease * self.chance.uniform(1.1, 1.6) + 1.0, go_on)
        return True

    def kill_server(self, server: DisposableServer) -> None:
        """Kill the server; sometimes the end of its log is lost."""
        super().kill_server(server)
        if self.chance.random() < _TRUNCATED:
            self.truncated += server.lose_tail(self.chance.randint(1, _LARGEST_LOSS))

    def restart_database(self) -> bool | None:
        """Stop PostgreSQL, half the time as in a crash, and start it a little later."""
        server = self._targets.postgres
        if server is None or not server.runs:
            return False
        server.stop(self.chance.choice((signal.SIGQUIT, signal.SIGINT)))
        self.after(self.chance.choice(OUTAGES), server.start)
        return True


class ControlNemesis(EventsNemesis):
    """Arms wrong parts, which hurt themselves at the worst moment, and waits for that."""

    def __init__(self, is_wrong: Callable[[str], bool], *args: Any) -> None:
        super().__init__(*args)
        self._is_wrong = is_wrong
        self._since = 0
        self._thaw: Callable[[], None] | None = None
        self._frozen = ""
        self.acts[KILL] = self.acts[FREEZE] = lambda: False

    def arm(self, role: str) -> str | None:
        found = [kind for kind in (KILL, FREEZE) if self.wants(kind) and self._is_wrong(role)]
        return found[0] if found else None

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op == STOPS:
            client = next(one for one in self.clients if one.name == entry.who)
            assert client.process is not None
            # It writes this before it stops, and must not be let go before.
            os.waitid(os.P_PID, client.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            thaw = client.freeze()
            if self._thaw is not None or not self.wants(FREEZE):
                thaw()
                return
            self._thaw, self._frozen, self._since = thaw, entry.who, entry.at
        elif entry.op == ACT and self._thaw is not None and entry.at > self._since:
            if entry.who == self._frozen:
                return
            self._thaw()
            self._thaw = None
            self.happened(FREEZE)
