"""What goes wrong, and when: faults in an order and at victims that a seed gives."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from agentbus.torture.network import Proxy
from agentbus.torture.server import Server

KILL, FREEZE = "kill", "freeze"
CUT, HALF_OPEN, LATENCY = "cut", "half_open", "latency"
LOST_REPLY, LOST_REQUEST = "lost_reply", "lost_request"
SERVER_KILL, WIPE, SLOW_DISK = "server_kill", "wipe", "slow_disk"
FULL_MEMORY, CLOCK = "full_memory", "clock_shift"
# What is done to clients and their connections, and what only to a server of one's own.
OF_CLIENTS = (KILL, FREEZE, CUT, HALF_OPEN, LATENCY, LOST_REPLY, LOST_REQUEST)
OF_SERVERS = (SERVER_KILL, WIPE, SLOW_DISK, FULL_MEMORY, CLOCK)

# In seconds. Most outages are short, and some longer than a client's deadline.
OUTAGES = (0.0, 0.0, 0.1, 0.5, 2.0)
_SILENCE = (1.0, 4.0)
_FROZEN = (0.5, 5.0)
_LATE = (0.02, 0.3)
_LATE_FOR = (1.0, 3.0)
# A disk that is slow stops the server in its log's fsync: for its clients it stands still.
_STALL = (0.1, 1.5)
_FULL = (0.1, 1.0)
_SHIFTS = (-7200.0, -60.0, -3.0, 3.0, 60.0, 7200.0)
_SHIFTED = (0.5, 3.0)


class Client:
    """A process in a role, replaced when it dies, behind proxies of its own that outlive it."""

    def __init__(self, name: str, proxies: Sequence[Proxy]) -> None:
        self.name = name
        self.proxies = proxies
        self.process: subprocess.Popen[bytes] | None = None
        # `killed` is whether its death was the nemesis's doing.
        self.killed = self.frozen = False

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Have a new process in this role."""
        self.process = process
        self.killed = self.frozen = False

    @property
    def alive(self) -> bool:
        """Whether its process runs, frozen or not."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send its process a signal, if it runs."""
        if self.process is not None and self.alive:
            self.process.send_signal(number)

    def tell(self, line: str) -> None:
        """Write a line to its process's stdin; one that is dead, or not replaced yet, is told nothing."""
        stdin = self.process.stdin if self.process is not None else None
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                os.write(stdin.fileno(), f"{line}\n".encode())


class Nemesis:
    """Does its faults one after the other, about `gap` seconds apart.

    `wanted` says how many of each kind; each is done by the method in `acts`, which returns True if it
    was done, False if there was nobody to do it to (it is tried again later), and None if it has begun
    and will be counted by `proven`, or not, by `unproven`.
    """

    # By how much the server's clock leaps, in seconds: one of these.
    leaps: Sequence[float] = _SHIFTS

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        server: Server | None,
    ) -> None:
        self.clients = clients
        self.server = server
        self.gap = gap
        self.chance = random.Random(seed)  # noqa: S311 - a seed gives the same faults again
        self._left = [kind for kind, number in wanted.items() for _ in range(number)]
        self.chance.shuffle(self._left)
        self.total = len(self._left)
        self.counts = dict.fromkeys(wanted, 0)
        # How often there was nobody to be hurt, so that there must be more work.
        self.hunger = 0
        self._begun = 0
        self._next = time.monotonic() + gap
        self._later: list[tuple[float, Callable[[], None]]] = []
        # What is wrong with the server now: one thing at a time.
        self._server_is: str | None = None
        self.acts: dict[str, Callable[[], bool | None]] = {
            KILL: self.kill,
            FREEZE: self.freeze,
            CUT: self.cut,
            HALF_OPEN: self.silence,
            LATENCY: self.delay,
            LOST_REPLY: self.lose_reply,
            LOST_REQUEST: self.lose_request,
            SERVER_KILL: self.kill_server,
            WIPE: self.wipe,
            SLOW_DISK: self.stall,
            FULL_MEMORY: self.starve,
            CLOCK: self.shift,
        }

    @property
    def done(self) -> int:
        """How many faults there were."""
        return sum(self.counts.values())

    @property
    def finished(self) -> bool:
        """Whether all faults were done, and what they spoilt for a while is sound again."""
        return not (self._left or self._later or self._begun)

    @property
    def serves(self) -> bool:
        """Whether the server runs and takes everything."""
        return self._server_is is None

    def wants(self, kind: str) -> bool:
        """Tell whether there are faults of a kind to be done yet."""
        return kind in self._left

    def tick(self) -> None:
        """Go on with what takes time, and do the next fault when it is due."""
        now = time.monotonic()
        for when, act in list(self._later):
            if now >= when:
                self._later.remove((when, act))
                act()
        if not self._left or now < self._next:
            return
        kind = self._left.pop(0)
        outcome = self.acts[kind]()
        self.did(kind, outcome)
        if outcome:
            self.counts[kind] += 1
        elif outcome is None:
            self._begun += 1
        else:
            self._left.insert(self.chance.randint(0, len(self._left)), kind)
            self.hunger += 1
        self._next = now + self.gap * self.chance.uniform(0.5, 1.5)

    def did(self, kind: str, outcome: bool | None) -> None:
        """Do nothing: for who wants to write down what was done when."""

    def proven(self, kind: str) -> None:
        """Count a fault that had begun and did what it was to do."""
        self._begun -= 1
        self.counts[kind] += 1

    def unproven(self, kind: str) -> None:
        """Have a fault that had begun, and came to nothing, done once more."""
        self._begun -= 1
        self._left.insert(self.chance.randint(0, len(self._left)), kind)

    def happened(self, kind: str) -> bool:
        """Count a fault that came about by itself instead of one to be done; False if none is left."""
        if kind in self._left:
            self._left.remove(kind)
            self.counts[kind] += 1
            return True
        return False

    def end(self) -> None:
        """Leave nobody frozen, and nothing away."""
        while self._later:
            self._later.pop(0)[1]()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something so much later, or at the end."""
        self._later.append((time.monotonic() + seconds, act))

    # -- to clients --

    def victims(self) -> list[Client]:
        """Return whom one may hurt now."""
        return [one for one in self.clients if one.alive and not (one.frozen or one.killed)]

    def victim(self) -> Client | None:
        """Return one of them, or None."""
        found = self.victims()
        return self.chance.choice(found) if found else None

    def kill(self) -> bool | None:
        """Kill one with -9."""
        one = self.victim()
        if one is None:
            return False
        one.killed = True
        one.send(signal.SIGKILL)
        return True

    def freeze(self) -> bool | None:
        """Stop one for a while."""
        one = self.victim()
        if one is None:
            return False
        process = one.process
        one.send(signal.SIGSTOP)
        one.frozen = True

        def go_on() -> None:
            if one.process is process:
                one.frozen = False
                one.send(signal.SIGCONT)

        self.after(self.chance.uniform(*_FROZEN), go_on)
        return True

    # -- to their connections --

    def _proxy(self) -> Proxy | None:
        one = self.victim()
        return None if one is None else self.chance.choice(one.proxies)

    def cut(self) -> bool | None:
        """Cut one's connections with a RST."""
        proxy = self._proxy()
        return proxy is not None and proxy.cut(reset=True) > 0

    def silence(self) -> bool | None:
        """Lose whatever goes over one's connections, one way or both, and tell neither side."""
        proxy = self._proxy()
        deaf, mute = self.chance.choice(((True, False), (False, True), (True, True)))
        if proxy is None or not proxy.half_open(deaf=deaf, mute=mute):
            return False
        self.after(self.chance.uniform(*_SILENCE), proxy.forget)
        return True

    def delay(self) -> bool | None:
        """Have replies come late for a while."""
        proxy = self._proxy()
        if proxy is None or proxy.delay:
            return False
        proxy.delay = self.chance.uniform(*_LATE)

        def go_on() -> None:
            proxy.delay = 0.0

        self.after(self.chance.uniform(*_LATE_FOR), go_on)
        return True

    def lose_reply(self) -> bool | None:
        """Have the server do what it was asked, and nobody learn of it."""
        proxy = self._proxy()
        if proxy is None or proxy.loses_reply:
            return False
        proxy.loses_reply = True
        return True

    def lose_request(self) -> bool | None:
        """Have a request never come to the server."""
        proxy = self._proxy()
        if proxy is None or proxy.loses_request:
            return False
        proxy.loses_request = True
        return True

    # -- to the server --

    def _spoil(self, how: str, seconds: float, mend: Callable[[], None]) -> None:
        self._server_is = how

        def go_on() -> None:
            mend()
            self._server_is = None

        self.after(seconds, go_on)

    def kill_server(self) -> bool | None:
        """Kill it with -9, and start it a little later."""
        if self.server is None or not self.serves:
            return False
        self.server.kill()
        self._spoil(SERVER_KILL, self.chance.choice(OUTAGES), self.server.start)
        return True

    def wipe(self) -> bool | None:
        """Take away all that it knows."""
        if self.server is None or not self.serves:
            return False
        self.server.wipe(restart=self.chance.random() < 0.5)
        return True

    def stall(self) -> bool | None:
        """Have it stand still, as a server does whose disk is slow to take its log."""
        if self.server is None or not self.serves:
            return False
        self.server.stop()
        self._spoil(SLOW_DISK, self.chance.uniform(*_STALL), self.server.go_on)
        return True

    def starve(self) -> bool | None:
        """Have it refuse whatever needs memory."""
        if self.server is None or not self.serves:
            return False
        self.server.starve()
        self._spoil(FULL_MEMORY, self.chance.uniform(*_FULL), self.server.feed)
        return True

    def shift(self) -> bool | None:
        """Have its clock leap, and leap back."""
        server = self.server
        if server is None or not server.has_clockwork or not self.serves:
            return False
        server.shift(self.chance.choice(self.leaps))
        self._spoil(CLOCK, self.chance.uniform(*_SHIFTED), lambda: server.shift(0))
        return True


def possible(
    wanted: Mapping[str, int], server: Server | None, *, clock: bool = True
) -> dict[str, int]:
    """Leave out what cannot be done: to a server that is not ours, to a clock without its library."""
    return {
        kind: number
        for kind, number in wanted.items()
        if number
        and not (kind in OF_SERVERS and server is None)
        and not (kind == CLOCK and not (clock and server and server.has_clockwork))
    }
