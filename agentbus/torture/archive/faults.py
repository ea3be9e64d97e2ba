"""What goes wrong for archivers and replays: they die at chosen moments, with or without their Spark."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from agentbus.torture.nemesis import (
    CLOCK,
    CUT,
    FREEZE,
    FULL_MEMORY,
    HALF_OPEN,
    KILL,
    LATENCY,
    LOST_REPLY,
    LOST_REQUEST,
    SERVER_KILL,
    SLOW_DISK,
    Client,
    Nemesis,
)
from agentbus.torture.order import Order
from agentbus.torture.server import Server

TREE_KILL, WORKER_KILL, WRITER_KILL = "tree_kill", "worker_kill", "writer_kill"
SECOND, COMPACT = "second_archiver", "compaction"
REPLAY_KILL, RESTORE = "replay_kill", "restore"
KILL_AT_WORK = "kill_at_work"
ARCHIVER, WRITER, REPLAYER = "archiver", "writer", "replayer"
# In seconds: the longest that a fresh process lives, and one that has just done something.
_ANY_MOMENT = 8.0
_SOON = 0.4
# Whom nothing is seen of for so long is killed all the same.
_LONGEST = 90.0
_GLANCE = 0.05
_SECOND_LIVES = (15.0, 30.0)


def wanted(order: Order) -> dict[str, int]:
    """Return how many of which faults there are to be while it is archived."""
    number = order.number
    rare = {SECOND: 0.6, COMPACT: 0.3, CLOCK: 1.0, FREEZE: 1.0} if order.minutes >= 1 else {}
    return {
        # Each costs the start of a JVM, for which a short form has time but once.
        KILL: number(1.2, 0),
        TREE_KILL: number(1.0),
        WORKER_KILL: number(0.8),
        **{kind: number(often) for kind, often in rare.items()},
        WRITER_KILL: number(2),
        CUT: number(6),
        HALF_OPEN: number(2),
        LATENCY: number(2),
        LOST_REPLY: number(4),
        LOST_REQUEST: number(3),
        SERVER_KILL: number(4),
        SLOW_DISK: number(3),
        FULL_MEMORY: number(2),
    }


def wanted_of_replay(order: Order) -> dict[str, int]:
    """Return how many of which faults there are to be while it is replayed."""
    number = order.number
    return {
        REPLAY_KILL: number(0.4),
        SERVER_KILL: number(0.3),
        CUT: number(0.5),
        LOST_REPLY: number(0.5),
        LOST_REQUEST: number(0.3),
    }


class _Aim(NamedTuple):
    """A process that is to be killed: with what, and when, if that is known already."""

    kind: str
    victim: Client
    process: subprocess.Popen[bytes]
    due: float | None
    # What was seen of it when it was chosen.
    seen: int
    until: float


class Faults(Nemesis):
    """Hurts processes by their role, and kills some just after they have done something.

    `seen` tells how much a process has done so far, by its number. `second` starts another archiver and
    returns what ends it, `compact` starts a compaction if it can. Once it is `over`, nobody is hurt any
    more: what was wanted beyond that did not happen.
    """

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: list[Client],
        server: Server | None,
        *,
        seen: Callable[[int], int],
        second: Callable[[], Callable[[], None]] | None = None,
        compact: Callable[[], bool] | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(wanted, gap, seed, clients, server)
        self._seen = seen
        self._hire = second
        self._compact = compact
        self._over = over
        self._role = ""
        self._aims: list[_Aim] = []
        # How many were killed just after they had done something.
        self.at_work = 0
        self.acts |= {
            KILL: lambda: self._aim(KILL),
            TREE_KILL: lambda: self._aim(TREE_KILL),
            WORKER_KILL: lambda: self._aim(WORKER_KILL),
            REPLAY_KILL: lambda: self._aim(REPLAY_KILL),
            KILL_AT_WORK: lambda: self._aim(KILL_AT_WORK),
            WRITER_KILL: self._kill_writer,
            SECOND: self._second,
            COMPACT: self._compaction,
        }

    def victims(self) -> list[Client]:
        """Return whom one may hurt now, of the role that is meant."""
        aimed_at = [aim.victim for aim in self._aims]
        return [
            one
            for one in super().victims()
            if one.name.startswith(self._role) and not (self._role and one in aimed_at)
        ]

    def tick(self) -> None:
        """Go on with what takes time, kill who has done something, and do the next fault."""
        if self._left and self._over():
            self._left.clear()
        super().tick()
        now = time.monotonic()
        for aim in list(self._aims):
            self._aims.remove(aim)
            if aim.process.poll() is not None or aim.victim.process is not aim.process:
                self.unproven(aim.kind)
            elif aim.due is None and self._seen(aim.process.pid) > aim.seen:
                self.at_work += 1
                self._aims.append(aim._replace(due=now + self.chance.uniform(0, _SOON)))
            elif now < (aim.until if aim.due is None else aim.due) or aim.victim.frozen:
                self._aims.append(aim)
            elif self._strike(aim):
                self.proven(aim.kind)
            else:
                self.unproven(aim.kind)

    def freeze(self) -> bool | None:
        """Stop an archiver for a while, and not what it started."""
        with self._of(ARCHIVER):
            return super().freeze()

    def _kill_writer(self) -> bool | None:
        with self._of(WRITER):
            return super().kill()

    def _second(self) -> bool | None:
        if self._hire is None:
            return False
        self.after(self.chance.uniform(*_SECOND_LIVES), self._hire())
        return True

    def _compaction(self) -> bool | None:
        return self._compact is not None and self._compact()

    @contextlib.contextmanager
    def _of(self, role: str) -> Iterator[None]:
        self._role = role
        try:
            yield
        finally:
            self._role = ""

    def _aim(self, kind: str) -> bool | None:
        """Choose whom to kill: at any moment, that of its start among them, or when it is at work."""
        with self._of(REPLAYER if kind == REPLAY_KILL else ARCHIVER):
            one = self.victim()
        if one is None or one.process is None:
            return False
        now = time.monotonic()
        blindly = kind in (KILL, TREE_KILL) and self.chance.random() < 0.3
        due = now + self.chance.uniform(0, _ANY_MOMENT) if blindly else None
        seen = self._seen(one.process.pid)
        self._aims.append(_Aim(kind, one, one.process, due, seen, now + _LONGEST))
        return None

    def _strike(self, aim: _Aim) -> bool:
        below = descendants(aim.process.pid)
        if aim.kind == WORKER_KILL:
            found = [pid for pid, words in below if "pyspark" in words and "daemon" in words]
            # All of them: those that are left would do the work.
            return sum(_killed(pid) for pid in found) > 0
        aim.victim.killed = True
        aim.process.kill()
        if aim.kind != KILL:
            for pid, _ in below:
                _killed(pid)
        return True


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def descendants(of: int) -> list[tuple[int, str]]:
    """Return the processes that one has started, and those that these have, each with its command line."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    below: dict[int, list[tuple[int, str]]] = {}
    for line in listed.stdout.splitlines():
        pid, parent, *words = line.split(None, 2)
        below.setdefault(int(parent), []).append((int(pid), " ".join(words)))
    found, waiting = [], [of]
    while waiting:
        for child, args in below.get(waiting.pop(), []):
            waiting.append(child)
            found.append((child, args))
    return found


class Versions:
    """Who made which versions of an archive, as they appear in its log."""

    def __init__(self, path: pathlib.Path) -> None:
        self._log = path / "_log"
        self._by: dict[int, int] = {}
        self._looked = 0.0
        self.number = 0

    def of(self, pid: int) -> int:
        """Return how many versions a process of this machine has made."""
        self.look()
        return self._by.get(pid, 0)

    def look(self) -> None:
        """Read what came since, unless that was done a moment ago."""
        if time.monotonic() < self._looked + _GLANCE:
            return
        self._looked = time.monotonic()
        while (name := self._log / f"{self.number + 1:020d}.json").exists():
            commit: dict[str, Any] = json.loads(name.read_bytes())
            host, _, pid = commit["by"].rpartition(":")
            if host == platform.node():
                self._by[int(pid)] = self._by.get(int(pid), 0) + 1
            self.number += 1
