"""The nemesis: injects faults in an order, and at victims, that a seed gives."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from agentbus.torture.history import OK, HistoryEntry, Scribe
from agentbus.torture.network import Proxy
from agentbus.torture.server import DisposableServer

KILL, FREEZE = "kill", "freeze"
CUT, HALF_OPEN, LATENCY = "cut", "half_open", "latency"
LOST_REPLY, LOST_REQUEST = "lost_reply", "lost_request"
SERVER_KILL, WIPE, SLOW_DISK = "server_kill", "wipe", "slow_disk"
FULL_MEMORY, CLOCK = "full_memory", "clock_shift"
# Faults of clients and their connections, and those of a private server.
OF_CLIENTS = (KILL, FREEZE, CUT, HALF_OPEN, LATENCY, LOST_REPLY, LOST_REQUEST)
OF_SERVERS = (SERVER_KILL, WIPE, SLOW_DISK, FULL_MEMORY, CLOCK)

# In seconds. Most outages are short, and some longer than a client's deadline.
OUTAGES = (0.0, 0.0, 0.1, 0.5, 2.0)
_SILENCE = (1.0, 4.0)
_FROZEN = (0.5, 5.0)
_LATE = (0.02, 0.3)
_LATE_FOR = (1.0, 3.0)
# A slow disk stops the server in the fsync of its log: for its clients it stands still.
_STALL = (0.1, 1.5)
_FULL = (0.1, 1.0)
_SHIFTS = (-7200.0, -60.0, -3.0, 3.0, 60.0, 7200.0)
_SHIFTED = (0.5, 3.0)


class Client:
    """A role and the process that has it now, behind proxies that outlive the process."""

    def __init__(self, name: str, proxies: Sequence[Proxy]) -> None:
        self.name = name
        self.proxies = proxies
        self.process: subprocess.Popen[bytes] | None = None
        # Whether the nemesis has killed it, and whether it is frozen.
        self.killed = self.frozen = False

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Give the role to a new process."""
        self.process = process
        self.killed = self.frozen = False

    @property
    def alive(self) -> bool:
        """Whether its process runs, frozen or not."""
        return self.process is not None and self.process.poll() is None

    @property
    def done(self) -> bool:
        """Whether its process has exited with 0."""
        return self.process is not None and self.process.poll() == 0

    def send(self, number: signal.Signals) -> None:
        """Send its process a signal, if it runs."""
        if self.process is not None and self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill its process with -9."""
        self.killed = True
        self.send(signal.SIGKILL)

    def freeze(self) -> Callable[[], None]:
        """Stop its process; returns what lets it run on, unless it was replaced."""
        process, self.frozen = self.process, True
        self.send(signal.SIGSTOP)

        def go_on() -> None:
            if self.process is process:
                self.frozen = False
                self.send(signal.SIGCONT)

        return go_on

    def end(self) -> None:
        """Kill its process, and collect it."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def tell(self, line: str) -> None:
        """Write a line to its process's stdin; one that is dead gets nothing."""
        stdin = self.process.stdin if self.process is not None else None
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                os.write(stdin.fileno(), f"{line}\n".encode())


class Nemesis:
    """Does its faults one after the other, about `gap` seconds apart.

    `wanted` is how many of each kind. The method in `acts` does one: it returns True if the fault happened,
    False if there was no victim (it is tried again later), and None if it has begun: then `proven`
    counts it later, or `unproven` repeats it.
    """

    # One of these is by how many seconds the server's clock leaps.
    leaps: Sequence[float] = _SHIFTS

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        server: DisposableServer | None,
    ) -> None:
        self.wanted = wanted
        self.clients = clients
        self.server = server
        self.gap = gap
        self.chance = random.Random(seed)  # noqa: S311 - a seed gives the same faults again
        self._left = [kind for kind, number in wanted.items() for _ in range(number)]
        self.chance.shuffle(self._left)
        self.total = len(self._left)
        self.counts = dict.fromkeys(wanted, 0)
        # Where the faults are written down.
        self.log: Scribe | None = None
        # How often a fault found no victim, so that there must be more work.
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
            SERVER_KILL: lambda: self._to_server(self.kill_server),
            WIPE: lambda: self._to_server(self.wipe),
            SLOW_DISK: lambda: self._to_server(self.stall),
            FULL_MEMORY: lambda: self._to_server(self.starve),
            CLOCK: lambda: self._to_server(self.shift),
        }

    @property
    def done(self) -> int:
        """How many faults have happened."""
        return sum(self.counts.values())

    @property
    def finished(self) -> bool:
        """Whether all faults have happened, and what they damaged for a while is repaired."""
        return not (self._left or self._later or self._begun)

    @property
    def serves(self) -> bool:
        """Whether the server runs and accepts everything."""
        return self._server_is is None

    def wants(self, kind: str) -> bool:
        """Tell whether faults of a kind are still to be done."""
        return kind in self._left

    def tick(self) -> None:
        """End what has lasted long enough, and do the next fault when it is due."""
        now = time.monotonic()
        for when, act in list(self._later):
            if now >= when:
                self._later.remove((when, act))
                act()
        if not self._left or now < self._next:
            return
        kind = self._left.pop(0)
        outcome = self.acts[kind]()
        if outcome is not False and self.log is not None:
            self.log.note(kind, OK, server=self._server_is)
        if outcome:
            self.counts[kind] += 1
        elif outcome is None:
            self._begun += 1
        else:
            self._again(kind)
            self.hunger += 1
        self._next = now + self.gap * self.chance.uniform(0.5, 1.5)

    def saw(self, entry: HistoryEntry) -> None:
        """Learn from a line of a history what its process does."""

    def proven(self, kind: str) -> None:
        """Count a fault that had begun and had its effect."""
        self._begun -= 1
        self.counts[kind] += 1

    def unproven(self, kind: str) -> None:
        """Do a fault again that had begun and had no effect."""
        self._begun -= 1
        self._again(kind)

    def _again(self, kind: str) -> None:
        self._left.insert(self.chance.randint(0, len(self._left)), kind)

    def happened(self, kind: str) -> bool:
        """Count a fault that happened by itself in place of one to be done; False if none is left."""
        if kind in self._left:
            self._left.remove(kind)
            self.counts[kind] += 1
            return True
        return False

    def end(self) -> None:
        """Leave no process frozen, and no damage."""
        while self._later:
            self._later.pop(0)[1]()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something `seconds` later, or at the end."""
        self._later.append((time.monotonic() + seconds, act))

    # -- to clients --

    def victims(self) -> list[Client]:
        """Return the clients that can be hurt now."""
        return [one for one in self.clients if one.alive and not (one.frozen or one.killed)]

    def victim(self) -> Client | None:
        """Choose one of them."""
        found = self.victims()
        return self.chance.choice(found) if found else None

    def kill(self) -> bool | None:
        """Kill one with -9."""
        one = self.victim()
        if one is not None:
            one.kill()
        return one is not None

    def freeze(self) -> bool | None:
        """Stop one for a while."""
        one = self.victim()
        if one is not None:
            self.after(self.chance.uniform(*_FROZEN), one.freeze())
        return one is not None

    # -- to their connections --

    def _proxy(self) -> Proxy | None:
        one = self.victim()
        return None if one is None else self.chance.choice(one.proxies)

    def cut(self) -> bool | None:
        """Cut one's connections with a RST."""
        proxy = self._proxy()
        return proxy is not None and proxy.cut(reset=True) > 0

    def silence(self) -> bool | None:
        """Lose everything on one's connections, in one direction or both; neither side notices."""
        proxy = self._proxy()
        deaf, mute = self.chance.choice(((True, False), (False, True), (True, True)))
        if proxy is None or not proxy.half_open(deaf=deaf, mute=mute):
            return False
        self.after(self.chance.uniform(*_SILENCE), proxy.forget)
        return True

    def delay(self) -> bool | None:
        """Delay replies for a while."""
        proxy = self._proxy()
        if proxy is None or proxy.delay:
            return False
        proxy.delay = self.chance.uniform(*_LATE)
        self.after(self.chance.uniform(*_LATE_FOR), lambda: setattr(proxy, "delay", 0.0))
        return True

    def lose_reply(self) -> bool | None:
        """Lose a reply: the server does what it was asked, and the client never learns of it."""
        proxy = self._proxy()
        if proxy is None or proxy.loses_reply:
            return False
        proxy.loses_reply = True
        return True

    def lose_request(self) -> bool | None:
        """Lose a request before it reaches the server."""
        proxy = self._proxy()
        if proxy is None or proxy.loses_request:
            return False
        proxy.loses_request = True
        return True

    # -- to the server --

    def _to_server(self, act: Callable[[DisposableServer], bool | None]) -> bool:
        """Do something to the server, unless something is wrong with it already."""
        return self.server is not None and self.serves and act(self.server) is not False

    def _spoil(self, how: str, seconds: float, mend: Callable[[], None]) -> None:
        self._server_is = how

        def go_on() -> None:
            mend()
            self._server_is = None

        self.after(seconds, go_on)

    def kill_server(self, server: DisposableServer) -> None:
        """Kill it with -9, and start it again a little later."""
        server.kill()
        self._spoil(SERVER_KILL, self.chance.choice(OUTAGES), server.start)

    def wipe(self, server: DisposableServer) -> None:
        """Delete all its data."""
        server.wipe(restart=self.chance.random() < 0.5)

    def stall(self, server: DisposableServer) -> None:
        """Stop it for a while, as a slow disk does."""
        server.stop()
        self._spoil(SLOW_DISK, self.chance.uniform(*_STALL), server.go_on)

    def starve(self, server: DisposableServer) -> None:
        """Make it refuse what needs memory."""
        server.starve()
        self._spoil(FULL_MEMORY, self.chance.uniform(*_FULL), server.feed)

    def shift(self, server: DisposableServer) -> bool:
        """Make its clock leap, and leap back."""
        if not server.has_clockwork:
            return False
        server.shift(self.chance.choice(self.leaps))
        self._spoil(CLOCK, self.chance.uniform(*_SHIFTED), lambda: server.shift(0))
        return True


def possible(
    wanted: Mapping[str, int], server: DisposableServer | None, *, clock: bool = True
) -> dict[str, int]:
    """Leave out the faults of a server that is not ours, and of a clock that cannot be shifted."""
    return {
        kind: number
        for kind, number in wanted.items()
        if number
        and not (kind in OF_SERVERS and server is None)
        and not (kind == CLOCK and not (clock and server and server.has_clockwork))
    }
