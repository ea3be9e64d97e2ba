"""Faults of workers: above all, one is frozen until its task is with another worker."""

from __future__ import annotations

import collections
import pathlib
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from agentbus.torture.nemesis import FREEZE, Client, Nemesis
from agentbus.torture.server import DisposableServer
from agentbus.torture.work.tasks import ACK, LIFE, RUN, by_hand

PUBLISHER_KILL = "publisher_kill"
PUBLISHER = "publisher"
_LONGEST_FREEZE = 20.0
_LONGEST_SEARCH = 0.3
# How often a kill waits if no worker is at work, and how often it hits one at work.
_WAITS_FOR_WORK = 0.7
_AT_WORK = 0.75
_LATE_ATTEMPT = 3


class WorkerState:
    """What a process does at the moment, by its history; several tasks can run at once."""

    def __init__(self, process: subprocess.Popen[bytes] | None = None) -> None:
        self.process = process
        self.inside: dict[int, HistoryEntry] = {}
        self.asking: dict[int, HistoryEntry] = {}
        self.answers: dict[int, str] = {}

    def saw(self, entry: HistoryEntry) -> None:
        if entry.op not in (RUN, ACK):
            return
        task, current = entry.of["i"], self.inside if entry.op == RUN else self.asking
        if entry.phase == INVOKE:
            current[task] = entry
            return
        current.pop(task, None)
        if entry.op == ACK:
            self.answers[task] = entry.phase

    @property
    def latest(self) -> int:
        """The highest attempt at any task that it is in; 0 if it is in none."""
        entries = (*self.inside.values(), *self.asking.values())
        return max((entry.of["attempt"] for entry in entries), default=0)


class _Freeze:
    """A worker that is frozen inside a task until another worker has the task."""

    def __init__(self, client: Client, entry: HistoryEntry) -> None:
        self.client, self.process, self.entry = client, client.process, entry
        self.task: int = entry.of["i"]
        self.go_on: Callable[[], None] = client.freeze()
        self.began = time.monotonic()
        self.successor: str | None = None

    @property
    def late(self) -> bool:
        return time.monotonic() > self.began + _LONGEST_FREEZE


class WorkNemesis(Nemesis):
    """Hurts workers, publisher and server.

    A freeze counts once the worker, let go after another had begun its task, has the answer to its
    acknowledgement.
    """

    # A moment that a clock ahead has set is that much later when the clock is back, and nothing may outlast
    # the 300 s for which the server remembers requests and keys.
    leaps = (-120.0, -60.0, -3.0, 3.0, 15.0)

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        server: DisposableServer | None,
        *,
        holds: pathlib.Path,
        poison: Collection[int],
        only_at_work: bool = False,
    ) -> None:
        """`holds` is where the tasks are named that must not be finished; kills may be `only_at_work`."""
        super().__init__(wanted, gap, seed, clients, server)
        self.acts[PUBLISHER_KILL] = self.kill_publisher
        # How often no worker was at work, how many were killed at work, and how many freezes ended in a
        # refused acknowledgement.
        self.idle = self.at_work = self.refused = 0
        self._at_work, self._waits = (1.0, 1.0) if only_at_work else (_AT_WORK, _WAITS_FOR_WORK)
        self._holds = holds
        self._poison = poison
        self._states: dict[str, WorkerState] = collections.defaultdict(WorkerState)
        self._runs: dict[int, list[str]] = collections.defaultdict(list)
        self._frozen: _Freeze | None = None
        # When a search for a worker to freeze finds that there is too little work.
        self._idle_at: float | None = None

    def saw(self, entry: HistoryEntry) -> None:
        client = next(one for one in self.clients if one.name == entry.who)
        if entry.op == LIFE:
            self._states[entry.who] = WorkerState(client.process)
        self._states[entry.who].saw(entry)
        if entry.op == RUN and entry.phase == INVOKE:
            self._runs[entry.of["i"]].append(entry.who)
            if entry.of["i"] in self._poison:
                # It kills itself.
                client.killed = True
        elif entry.op == RUN and entry.phase == OK and self._frozen is None:
            self._runs.pop(entry.of["i"], None)

    def tick(self) -> None:
        if self._frozen is not None:
            self._go_on(self._frozen)
        elif self._idle_at is not None:
            self._seek(self._idle_at)
        super().tick()

    def end(self) -> None:
        if self._frozen is not None:
            self._release(self._frozen)
        super().end()

    def victims(self) -> list[Client]:
        found, frozen = super().victims(), self._frozen
        if frozen is None:
            return found
        return [
            one
            for one in found
            if one.name not in (frozen.client.name, frozen.successor)
            and frozen.task not in self._state(one).inside
        ]

    def kill(self) -> bool | None:
        """Kill a worker with -9, mostly one at work.

        Not always, and not in late attempts: the last task would meet a death in each attempt, and be
        buried rightly, though it is innocent.
        """
        workers = [one for one in self.victims() if one.name != PUBLISHER]
        busy = [one for one in workers if 0 < self._state(one).latest < _LATE_ATTEMPT]
        if not busy and self.chance.random() < self._waits:
            self.idle += 1
            return False
        one = self._kill(busy if busy and self.chance.random() < self._at_work else workers)
        self.at_work += one is not None and self._state(one).latest > 0
        return one is not None

    def kill_publisher(self) -> bool | None:
        """Kill the publisher with -9."""
        return self._kill([one for one in self.victims() if one.name == PUBLISHER]) is not None

    def _kill(self, victims: Sequence[Client]) -> Client | None:
        if not victims:
            return None
        one = self.chance.choice(victims)
        one.kill()
        return one

    def freeze(self) -> bool | None:
        if self._frozen is not None or self._idle_at is not None:
            return False
        self._idle_at = time.monotonic() + _LONGEST_SEARCH
        return None

    def _seek(self, idle_at: float) -> None:
        found = [
            (one, entry)
            for one in self.victims()
            for entry in self._state(one).inside.values()
            if entry.of["attempt"] == 1 and by_hand(entry.of["i"])
        ]
        if not found:
            if time.monotonic() > idle_at:
                self.idle += 1
                self._idle_at = time.monotonic() + _LONGEST_SEARCH
            return
        client, entry = self.chance.choice(found)
        self._hold(entry.of["i"]).touch()
        self._frozen, self._idle_at = _Freeze(client, entry), None

    def _go_on(self, frozen: _Freeze) -> None:
        state, task = self._state(frozen.client), frozen.task
        if frozen.successor is None:
            if state.inside.get(task) is not frozen.entry or frozen.late:
                # It had left the task when it was frozen: this shows nothing.
                self._release(frozen)
                self.unproven(FREEZE)
                return
            others = [name for name in self._runs[task] if name != frozen.client.name]
            if others:
                frozen.successor = others[-1]
                frozen.go_on()
                # Still under observation.
                frozen.client.frozen = True
            return
        answer = state.answers.get(task)
        if answer in (OK, FAIL):
            self._release(frozen)
            self.refused += answer == FAIL
            self.proven(FREEZE)
        elif answer == UNKNOWN or frozen.late or frozen.client.process is not frozen.process:
            self._release(frozen)
            self.unproven(FREEZE)

    def _release(self, frozen: _Freeze) -> None:
        frozen.go_on()
        self._hold(frozen.task).unlink(missing_ok=True)
        self._frozen = None

    def _state(self, client: Client) -> WorkerState:
        """Return what the process does that has this role now: it may not have written anything yet."""
        found = self._states[client.name]
        return found if found.process is client.process else WorkerState()

    def _hold(self, task: int) -> pathlib.Path:
        return self._holds / str(task)
