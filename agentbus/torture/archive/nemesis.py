"""Faults of archivers and replays: they die at chosen moments, with or without their Spark."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from agentbus.torture.mode import Trial
from agentbus.torture.nemesis import CLOCK, FREEZE, KILL, Client, Nemesis
from agentbus.torture.server import DisposableServer

TREE_KILL, WORKER_KILL, WRITER_KILL = "tree_kill", "worker_kill", "writer_kill"
SECOND, COMPACT = "second_archiver", "compaction"
REPLAY_KILL, RESTORE = "replay_kill", "restore"
KILL_AT_WORK = "kill_at_work"
ARCHIVER, WRITER, REPLAYER = "archiver", "writer", "replayer"
# The kills that are aimed at a process at work.
_AIMED = (KILL, TREE_KILL, WORKER_KILL, REPLAY_KILL, KILL_AT_WORK)
# How long a new process lives at most, and one that has just done something; in seconds.
_ANY_MOMENT = 8.0
_SOON = 0.4
# A process that does nothing for this long is killed all the same.
_LONGEST = 90.0
_GLANCE = 0.05
_SECOND_LIVES = (15.0, 30.0)


_A_MINUTE = {
    "cut": 6,
    "half_open": 2,
    "latency": 2,
    "lost_reply": 4,
    "lost_request": 3,
    "server_kill": 4,
    "slow_disk": 3,
    "full_memory": 2,
}
_A_MINUTE_OF_REPLAY = {
    REPLAY_KILL: 0.4,
    "server_kill": 0.3,
    "cut": 0.5,
    "lost_reply": 0.5,
    "lost_request": 0.3,
}


def wanted(trial: Trial) -> dict[str, int]:
    """Return the faults of archiving."""
    number = trial.number
    rare = {SECOND: 0.6, COMPACT: 0.3, CLOCK: 1.0, FREEZE: 1.0} if trial.minutes >= 1 else {}
    return {
        # Each costs the start of a JVM, for which the short form has time only once.
        KILL: number(1.2, 0),
        TREE_KILL: number(1.0),
        WORKER_KILL: number(0.8),
        **{kind: number(often) for kind, often in rare.items()},
        WRITER_KILL: number(2),
        **trial.faults(_A_MINUTE),
    }


def wanted_of_replay(trial: Trial) -> dict[str, int]:
    """Return the faults of the replay."""
    return trial.faults(_A_MINUTE_OF_REPLAY)


class _Aim(NamedTuple):
    """A process that is to be killed: when, if that is known already, and how much it had done before."""

    kind: str
    victim: Client
    process: subprocess.Popen[bytes]
    due: float | None
    seen: int
    until: float


class ArchiveNemesis(Nemesis):
    """Hurts processes by role, and kills some just after they have done something.

    `seen` says how much a process has done, by its id. `second` starts another archiver and returns what
    ends it. `compact` starts a compaction, if it can. Once it is `over`, the remaining faults are dropped.
    """

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: list[Client],
        server: DisposableServer | None,
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
            **{kind: functools.partial(self._aim, kind) for kind in _AIMED},
            WRITER_KILL: self._kill_writer,
            SECOND: self._second,
            COMPACT: self._compaction,
        }

    def victims(self) -> list[Client]:
        aimed_at = [aim.victim for aim in self._aims]
        return [
            one
            for one in super().victims()
            if one.name.startswith(self._role) and not (self._role and one in aimed_at)
        ]

    def tick(self) -> None:
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
        """Choose a process to kill: at any moment from its start, or once it has done something."""
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
            # All of them: the others would do the work.
            return sum(_killed(pid) for pid in found) > 0
        aim.victim.kill()
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
    """Return the descendants of a process, with their command lines."""
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
    """Counts the versions of an archive by the process that made them."""

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
