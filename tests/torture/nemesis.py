"""The nemesis: injects faults in an order, and at victims, that a seed gives."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeAlias

from tests.torture.history import OK, Scribe
from tests.torture.network import Proxy
from tests.torture.server import DisposableServer

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
# The most that a server's log loses of its end, in bytes.
_LARGEST_LOSS = 8000

# Does a fault, and returns whether it happened. One that takes time returns a generator: at each tick it
# yields whether the fault has happened by now, and at the end of the run it is closed.
Steps: TypeAlias = Generator[bool, None, None]
Fault: TypeAlias = Callable[[], bool | Steps]


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

    `wanted` is how many of each kind, and `faults` has what does them. One that did not happen, for want of
    a victim or by its end, is tried again later. `fit` tells whether a client can be hurt now.
    """

    # One of these is by how many seconds the server's clock leaps.
    leaps: Sequence[float] = _SHIFTS
    # The share of the server's deaths in which it loses the end of its log.
    loses_tail = 0.0

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        server: DisposableServer | None,
        *,
        fit: Callable[[Client], bool] = lambda _client: True,
    ) -> None:
        self.wanted = wanted
        self.clients = clients
        self.server = server
        self.gap = gap
        self.chance = random.Random(seed)
        self._left = [kind for kind, number in wanted.items() for _ in range(number)]
        self.chance.shuffle(self._left)
        self.total = len(self._left)
        self.counts = dict.fromkeys(wanted, 0)
        # Where the faults are written down.
        self.log: Scribe | None = None
        # How often a fault found no victim, so that there must be more work.
        self.hunger = 0
        # How often the server's log has lost its end.
        self.truncated = 0
        self._fit = fit
        self._next = time.monotonic() + gap
        self._running: list[Steps] = []
        # What is wrong with the server now: one thing at a time.
        self._server_is: str | None = None
        self.faults: dict[str, Fault] = {
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
        return not (self._left or self._running)

    @property
    def serves(self) -> bool:
        """Whether the server runs and accepts everything."""
        return self._server_is is None

    def left(self, kind: str) -> int:
        """Return how many faults of a kind are still to be done."""
        return self._left.count(kind)

    def tick(self) -> None:
        """Go on with the faults that take time, and do the next one when it is due."""
        self._running = [fault for fault in self._running if next(fault, False)]
        if not self._left or time.monotonic() < self._next:
            return
        fault = self._done(self._left.pop(0))
        if next(fault, False):
            self._running.append(fault)
        self._next = time.monotonic() + self.gap * self.chance.uniform(0.5, 1.5)

    def wait(self) -> None:
        """Begin no fault in the next `gap` seconds."""
        self._next = time.monotonic() + self.gap

    def _done(self, kind: str) -> Steps:
        """Do a fault step by step; count it as soon as it has happened, or do it again later."""
        outcome = self.faults[kind]()
        happened = outcome is True
        if isinstance(outcome, Generator):
            with contextlib.closing(outcome):
                for happens in outcome:
                    if happens and not happened:
                        happened = True
                        self._count(kind)
                    yield True
        elif happened:
            self._count(kind)
        if not happened:
            self._left.insert(self.chance.randint(0, len(self._left)), kind)
            self.hunger += 1

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.log is not None:
            self.log.note(kind, OK, server=self._server_is)

    def happened(self, kind: str) -> bool:
        """Count a fault that happened by itself in place of one to be done; False if none is left."""
        if kind not in self._left:
            return False
        self._left.remove(kind)
        self._count(kind)
        return True

    def give_up(self) -> None:
        """Do none of the faults that are still to be done."""
        self._left.clear()

    def end(self) -> None:
        """Leave no process frozen, and no damage."""
        while self._running:
            self._running.pop().close()

    # -- to clients --

    def victims(self) -> list[Client]:
        """Return the clients that can be hurt now."""
        return [
            one
            for one in self.clients
            if one.alive and not (one.frozen or one.killed) and self._fit(one)
        ]

    def one_of(self, found: Sequence[Client]) -> Client | None:
        """Choose one of these."""
        return self.chance.choice(found) if found else None

    def victim(self) -> Client | None:
        """Choose a client that can be hurt now."""
        return self.one_of(self.victims())

    def kill(self, one: Client | None = None) -> bool:
        """Kill one with -9."""
        one = one or self.victim()
        if one is not None:
            one.kill()
        return one is not None

    def freeze(self, one: Client | None = None, seconds: float | None = None) -> Steps:
        """Stop one for a while."""
        one = one or self.victim()
        if one is not None:
            seconds = self.chance.uniform(*_FROZEN) if seconds is None else seconds
            yield from lasting(seconds, one.freeze())

    # -- to their connections --

    def proxy(self) -> Proxy | None:
        """Choose a proxy of one that can be hurt now."""
        one = self.one_of([one for one in self.victims() if one.proxies])
        return None if one is None else self.chance.choice(one.proxies)

    def cut(self) -> bool:
        """Cut one's connections with a RST."""
        proxy = self.proxy()
        return proxy is not None and proxy.cut(reset=True) > 0

    def silence(self) -> Steps:
        """Lose everything on one's connections, in one direction or both; neither side notices."""
        proxy = self.proxy()
        deaf, mute = self.chance.choice(((True, False), (False, True), (True, True)))
        if proxy is not None and proxy.half_open(deaf=deaf, mute=mute):
            yield from lasting(self.chance.uniform(*_SILENCE), proxy.forget)

    def delay(self) -> Steps:
        """Delay replies for a while."""
        proxy = self.proxy()
        if proxy is not None and not proxy.delay:
            proxy.delay = self.chance.uniform(*_LATE)
            mend = functools.partial(setattr, proxy, "delay", 0.0)
            yield from lasting(self.chance.uniform(*_LATE_FOR), mend)

    def lose_reply(self) -> bool:
        """Lose a reply: the server does what it was asked, and the client never learns of it."""
        return self._lose("loses_reply", True)

    def lose_request(self) -> bool:
        """Lose a request before it reaches the server."""
        return self._lose("loses_request", True)

    def lose_reply_to(self, request: bytes) -> bool:
        """Lose the reply to a request that holds this."""
        return self._lose("loses", request)

    def _lose(self, what: str, how: bytes | bool) -> bool:
        proxy = self.proxy()
        if proxy is None or getattr(proxy, what):
            return False
        setattr(proxy, what, how)
        return True

    # -- to the server --

    def _to_server(self, fault: Callable[[DisposableServer], Steps]) -> Steps:
        """Do something to the server, unless something is wrong with it already."""
        if self.server is not None and self.serves:
            yield from fault(self.server)

    def alone(self, how: str, fault: Callable[[DisposableServer], Steps]) -> Steps:
        """Do something to the server that takes time, and nothing else to it meanwhile."""
        if self.server is not None and self.serves:
            self._server_is = how
            try:
                yield from fault(self.server)
            finally:
                self._server_is = None

    def _spoilt(self, how: str, seconds: float, mend: Callable[[], None]) -> Steps:
        self._server_is = how

        def go_on() -> None:
            mend()
            self._server_is = None

        return lasting(seconds, go_on)

    def kill_server(self, server: DisposableServer) -> Steps:
        """Kill it with -9, and start it again a little later."""
        server.kill()
        if self.chance.random() < self.loses_tail:
            self.truncated += server.lose_tail(self.chance.randint(1, _LARGEST_LOSS))
        return self._spoilt(SERVER_KILL, self.chance.choice(OUTAGES), server.start)

    def wipe(self, server: DisposableServer) -> Steps:
        """Delete all its data."""
        server.wipe(restart=self.chance.random() < 0.5)
        yield True

    def stall(self, server: DisposableServer) -> Steps:
        """Stop it for a while, as a slow disk does."""
        server.stop()
        return self._spoilt(SLOW_DISK, self.chance.uniform(*_STALL), server.go_on)

    def starve(self, server: DisposableServer) -> Steps:
        """Make it refuse what needs memory."""
        server.starve()
        return self._spoilt(FULL_MEMORY, self.chance.uniform(*_FULL), server.feed)

    def shift(self, server: DisposableServer) -> Steps:
        """Make its clock leap, and leap back."""
        server.shift(self.chance.choice(self.leaps))
        return self._spoilt(CLOCK, self.chance.uniform(*_SHIFTED), lambda: server.shift(0))


def lasting(seconds: float, mend: Callable[[], object]) -> Steps:
    """Yield that a fault has happened for so long, then mend it."""
    until = time.monotonic() + seconds
    try:
        yield True
        while time.monotonic() < until:
            yield True
    finally:
        mend()


def possible(wanted: Mapping[str, int], server: DisposableServer | None) -> dict[str, int]:
    """Leave out the faults of a server that is not ours, and of a clock that cannot be shifted."""
    return {
        kind: number
        for kind, number in wanted.items()
        if number
        and not (kind in OF_SERVERS and server is None)
        and not (kind == CLOCK and not (server and server.has_clockwork))
    }
