"""What goes wrong with events alone: deaths at named steps, leases outlived, databases that crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from agentbus.events import kill_points
from agentbus.torture import nemesis
from agentbus.torture.events.plan import ACT, DATABASE, READY, RELAY, STOPS
from agentbus.torture.events.postgres import Postgres
from agentbus.torture.history import Entry
from agentbus.torture.nemesis import FREEZE, KILL, OUTAGES, SERVER_KILL, Client
from agentbus.torture.network import Proxy
from agentbus.torture.server import Server

_BUSY, _ARMED, _TRUNCATED = 0.8, 0.3, 0.4
_LARGEST_LOSS = 8000
_PARKED = "consumer.parked"  # Nothing is parked here.


class Places(NamedTuple):
    """What can be hurt beside the processes; `tokens` says how often leases were taken, by role.

    `ready` are the names of those who have begun to work.
    """

    server: Server | None
    postgres: Postgres | None
    tokens: Callable[[str], int]
    lease: float
    ready: Collection[str]


class Nemesis(nemesis.Nemesis):
    """Has relays and consumers suffer most while they work; `roles` says what the clients are, by name.

    Those without a role send events.
    """

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        places: Places,
        roles: Mapping[str, str],
    ) -> None:
        super().__init__(wanted, gap, seed, clients, places.server)
        self._places = places
        self._roles = roles
        # Who has done something since it was started.
        self.busy: set[str] = set()
        # Whether there is nothing left to be done, so that anybody may be hurt.
        self.exhausted = False
        self.at_steps = self.truncated = self.overtaken = 0
        self.every_tick: Callable[[], None] = lambda: None
        # Nothing happens before all work: what befalls those who have not begun proves nothing.
        self.waits = True
        # How many faults may have been done by now, so that a slow machine's work keeps up with them.
        self.allowed: Callable[[], float] = lambda: self.total
        self.acts[DATABASE] = self.restart_database

    def tick(self) -> None:
        """Go on as any nemesis does, once all work."""
        if self.waits or self.done > self.allowed():
            self._next = time.monotonic() + self.gap
        super().tick()
        self.every_tick()

    def arm(self, role: str) -> str | None:
        """Return at which step the next process in a role is to die by itself, or None."""
        if not self.wants(KILL) or self.chance.random() >= _ARMED:
            return None
        mine = kill_points.RELAY if role == RELAY else kill_points.CONSUMER
        step = self.chance.choice([each for each in mine if each != _PARKED])
        return f"{step}:{1 if step.endswith('leased') else self.chance.randint(1, 3)}"

    def begun(self, name: str) -> None:
        """Know that a process is new."""
        self.busy.discard(name)

    def fell(self) -> None:
        """Count a process that died as it was armed to."""
        self.at_steps += self.happened(KILL)

    def saw(self, entry: Entry) -> None:
        """Know from what it writes that a process works."""
        if entry.op != READY:
            self.busy.add(entry.who)

    def figures(self) -> dict[str, int]:
        """Return how many died at a step, servers lost their tail, and leases their frozen holder."""
        return {
            "killed_at_steps": self.at_steps,
            "lost_tails": self.truncated,
            "overtaken": self.overtaken,
        }

    def victims(self) -> list[Client]:
        """Return whom one may hurt now: who has not begun to work must be given the time to."""
        return [one for one in super().victims() if one.name in self._places.ready]

    def victim(self) -> Client | None:
        """Return mostly one that has worked, and sometimes one that waits to take over."""
        return self._one_of(self.victims(), anybody=self.chance.random() > _BUSY)

    def _one_of(self, found: list[Client], *, anybody: bool) -> Client | None:
        if not (anybody or self.exhausted):
            found = [one for one in found if one.name in self.busy]
        return self.chance.choice(found) if found else None

    def _proxy(self) -> Proxy | None:
        # Who sends to a file has none.
        found = [one for one in self.victims() if one.proxies]
        one = self._one_of(found, anybody=self.chance.random() > _BUSY)
        return None if one is None else self.chance.choice(one.proxies)

    def freeze(self) -> bool | None:
        """Stop one that may have a lease for longer than it lasts."""
        found = [one for one in self.victims() if one.name in self._roles]
        one = self._one_of(found, anybody=False)
        if one is None:
            return False
        role, process = self._roles[one.name], one.process
        before = self._places.tokens(role)
        one.send(signal.SIGSTOP)
        one.frozen = True

        def go_on() -> None:
            self.overtaken += self._places.tokens(role) > before
            if one.process is process:
                one.frozen = False
                one.send(signal.SIGCONT)

        # Those that wait to take over look each second.
        self.after(self._places.lease * self.chance.uniform(1.1, 1.6) + 1.0, go_on)
        return True

    def kill_server(self) -> bool | None:
        """Kill the server; sometimes it has forgotten the last that it knew when it is back."""
        if self.server is None or not self.serves:
            return False
        self.server.kill()
        if self.chance.random() < _TRUNCATED:
            self.truncated += self.server.lose_tail(self.chance.randint(1, _LARGEST_LOSS))
        self._spoil(SERVER_KILL, self.chance.choice(OUTAGES), self.server.start)
        return True

    def restart_database(self) -> bool | None:
        """Stop PostgreSQL, half the time as in a crash, and start it a little later."""
        server = self._places.postgres
        if server is None or not server.runs:
            return False
        server.stop(self.chance.choice((signal.SIGQUIT, signal.SIGINT)))
        self.after(self.chance.choice(OUTAGES), server.start)
        return True


class Worst(nemesis.Nemesis):
    """For controls: its victims hurt themselves at their worst moment, and it waits for that."""

    def __init__(
        self, wanted: Mapping[str, int], clients: Sequence[Client], is_wrong: Callable[[str], bool]
    ) -> None:
        super().__init__(wanted, 0.1, 0, clients, None)
        self._is_wrong = is_wrong
        self._since = 0
        self.exhausted = self.waits = False
        self.every_tick: Callable[[], None] = lambda: None
        self.acts[KILL] = self.acts[FREEZE] = lambda: False

    def tick(self) -> None:
        """Go on as any nemesis does."""
        super().tick()
        self.every_tick()

    def arm(self, role: str) -> str | None:
        """Return what is to befall the next process in a role, by itself, or None."""
        found = [kind for kind in (KILL, FREEZE) if self.wants(kind) and self._is_wrong(role)]
        return found[0] if found else None

    def begun(self, name: str) -> None:
        """Know that a process is new."""

    def fell(self) -> None:
        """Count a process that died as it was armed to."""
        self.happened(KILL)

    def saw(self, entry: Entry) -> None:
        """Leave one that has stopped itself so until another acts."""
        if entry.op == STOPS:
            self._stopped(next(one for one in self.clients if one.name == entry.who), entry.at)
        elif entry.op == ACT:
            for one in self.clients:
                if one.frozen and one.name != entry.who and entry.at > self._since:
                    one.frozen = False
                    one.send(signal.SIGCONT)
                    self.happened(FREEZE)

    def figures(self) -> dict[str, int]:
        """Return what else there was."""
        return {}

    def _stopped(self, client: Client, at: int) -> None:
        assert client.process is not None
        # It notes what it does before it does it, and must not be told to go on before.
        os.waitid(os.P_PID, client.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if any(one.frozen for one in self.clients) or not self.wants(FREEZE):
            client.send(signal.SIGCONT)
            return
        client.frozen, self._since = True, at
