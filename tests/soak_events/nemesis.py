"""What goes wrong while events flow: deaths, frozen processes, servers that forget, a bad network."""

from __future__ import annotations

import pathlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agentbus.events import steps
from tests.events.postgres import Postgres
from tests.proxy import Proxy
from tests.servers import Server

KILL, SERVER_KILL, FREEZE, WIPE = "kill", "server_kill", "freeze", "wipe"
CUT, HALF_OPEN, DATABASE = "cut", "half_open", "database_restart"
_SILENCE = (0.5, 3.0)
_BUSY, _ARMED, _TRUNCATED = 0.8, 0.3, 0.4
_LARGEST_LOSS = 8000
_PARKED = "consumer.parked"  # Nothing is parked here.


class Slot:
    """A process in a role, replaced when it dies, behind proxies that outlive it."""

    def __init__(self, role: str, number: int, place: pathlib.Path, proxies: Sequence[Proxy]):
        self.role = role
        self.name = f"{role}-{number}"
        self.proxies = proxies
        self.output = place / f"{self.name}.out"
        self.errors = place / f"{self.name}.err"
        self.process: subprocess.Popen[bytes] | None = None
        self.killed = self.armed = self.fell = self.frozen = False
        self.said = 0

    @property
    def worked(self) -> bool:
        """Whether the process that runs now has said that it did something."""
        return self.output.exists() and self.output.stat().st_size > self.said

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Have a new process in this role, which has said nothing yet."""
        self.process = process
        self.killed = False


class Places(NamedTuple):
    """What can be hurt beside the processes; `tokens` says how often leases were taken, by role."""

    server: Server
    postgres: Postgres | None
    tokens: Callable[[str], int]
    lease: float
    outages: Sequence[float]


class Nemesis:
    """Does its faults one after the other, in an order and with victims that a seed gives."""

    def __init__(
        self, wanted: dict[str, int], gap: float, slots: list[Slot], places: Places, seed: int
    ) -> None:
        self._slots = slots
        self._places = places
        self._gap = gap
        self._chance = random.Random(seed)
        self._left = [kind for kind, number in wanted.items() for _ in range(number)]
        self._chance.shuffle(self._left)
        self.total = len(self._left)
        self.counts = dict.fromkeys(wanted, 0)
        # How often there was nobody at work to be hurt, so that more work is needed.
        self.hunger = 0
        self.exhausted = False
        self.at_steps = self.truncated = self.overtaken = 0
        self._next = time.monotonic() + gap
        self._server_back: float | None = None
        self._later: list[tuple[float, Callable[[], None]]] = []

    @property
    def done(self) -> int:
        """How many faults there were."""
        return sum(self.counts.values())

    @property
    def finished(self) -> bool:
        """Whether all faults were done, and what they spoilt for a while is sound again."""
        return not (self._left or self._later or self._server_back is not None)

    def arm(self, role: str) -> str | None:
        """Return at which step the next process in a role is to die by itself, or None."""
        if KILL not in self._left or self._chance.random() >= _ARMED:
            return None
        mine = steps.RELAY if role == "relay" else steps.CONSUMER
        step = self._chance.choice([each for each in mine if each != _PARKED])
        return f"{step}:{1 if step.endswith('leased') else self._chance.randint(1, 3)}"

    def died_at_step(self) -> None:
        """Count a process that died as it was armed to."""
        if KILL in self._left:
            self._left.remove(KILL)
            self.counts[KILL] += 1
            self.at_steps += 1

    def tick(self) -> None:
        """Go on with what takes time, and do the next fault when it is due."""
        now = time.monotonic()
        if self._server_back is not None and now >= self._server_back:
            self._places.server.start()
            self._server_back = None
        for when, act in list(self._later):
            if now >= when:
                self._later.remove((when, act))
                act()
        if self._left and now >= self._next:
            does = {
                KILL: self._kill,
                SERVER_KILL: self._kill_server,
                FREEZE: self._freeze,
                CUT: self._cut,
                HALF_OPEN: self._silence,
                WIPE: self._wipe,
                DATABASE: self._restart_database,
            }
            kind = self._left.pop(0)
            if does[kind]():
                self.counts[kind] += 1
            else:
                self._left.insert(self._chance.randint(0, len(self._left)), kind)
                self.hunger += 1
            self._next = now + self._gap * self._chance.uniform(0.5, 1.5)

    def end(self) -> None:
        """Leave nobody frozen, and nothing away."""
        for _, act in self._later:
            act()
        self._later.clear()
        if self._server_back is not None:
            self._places.server.start()
            self._server_back = None

    def _victim(self, *, anybody: bool = True) -> Slot | None:
        """Return whom to hurt: mostly one that has worked, and sometimes one that waits to take over."""
        found = [
            slot
            for slot in self._slots
            if not (slot.frozen or slot.killed)
            and slot.process is not None
            and slot.process.poll() is None
        ]
        if not (anybody and self._chance.random() > _BUSY) and not self.exhausted:
            found = [slot for slot in found if slot.worked]
        return self._chance.choice(found) if found else None

    def _kill(self) -> bool:
        slot = self._victim()
        if slot is None or slot.process is None:
            return False
        slot.killed = True
        slot.process.kill()
        return True

    def _freeze(self) -> bool:
        slot = self._victim(anybody=False)
        if slot is None or slot.process is None:
            return False
        process, before = slot.process, self._places.tokens(slot.role)
        process.send_signal(signal.SIGSTOP)
        slot.frozen = True

        def go_on() -> None:
            self.overtaken += self._places.tokens(slot.role) > before
            slot.frozen = False
            process.send_signal(signal.SIGCONT)

        # Those that wait to take over look each second.
        self._after(self._places.lease * self._chance.uniform(1.1, 1.6) + 1.0, go_on)
        return True

    def _cut(self) -> bool:
        slot = self._victim()
        return slot is not None and self._chance.choice(slot.proxies).cut(reset=True) > 0

    def _silence(self) -> bool:
        slot = self._victim()
        if slot is None:
            return False
        proxy = self._chance.choice(slot.proxies)
        deaf, mute = self._chance.choice(((True, False), (False, True), (True, True)))
        if not proxy.half_open(deaf=deaf, mute=mute):
            return False
        self._after(self._chance.uniform(*_SILENCE), proxy.forget)
        return True

    def _kill_server(self) -> bool:
        if self._server_back is not None:
            return False
        self._places.server.kill()
        if self._chance.random() < _TRUNCATED:
            self._lose_tail()
        self._server_back = time.monotonic() + self._chance.choice(self._places.outages)
        return True

    def _lose_tail(self) -> None:
        logs = sorted((self._places.server.place / "appendonlydir").glob("*.incr.aof"))
        if not logs:
            return
        size = logs[-1].stat().st_size
        with logs[-1].open("r+b") as file:
            file.truncate(max(0, size - self._chance.randint(1, _LARGEST_LOSS)))
        self.truncated += 1

    def _wipe(self) -> bool:
        if self._server_back is not None:
            return False
        server = self._places.server
        if self._chance.random() < 0.5:
            server.ask("FLUSHALL")
        else:
            server.kill()
            shutil.rmtree(server.place / "appendonlydir", ignore_errors=True)
            server.start()
        return True

    def _restart_database(self) -> bool:
        server = self._places.postgres
        assert server is not None
        server.stop(self._chance.choice((signal.SIGQUIT, signal.SIGINT)))
        self._after(self._chance.choice(self._places.outages), server.start)
        return True

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, act))
