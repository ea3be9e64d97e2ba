"""What goes wrong while workers work: above all, a frozen worker finds its task in another's hands."""

from __future__ import annotations

import collections
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, Entry
from agentbus.torture.nemesis import FREEZE, Client, Nemesis
from agentbus.torture.server import Server
from agentbus.torture.work.tasks import ACK, LIFE, RUN, by_hand

PUBLISHER_KILL = "publisher_kill"
PUBLISHER = "publisher"
_LONGEST_FREEZE = 20.0
_LONGEST_SEARCH = 0.3
# How often a kill waits when it finds nobody at work, and how often it is one at work that it takes.
_WAITS_FOR_WORK = 0.7
_AT_WORK = 0.75
_LATE_ATTEMPT = 3


class Hand:
    """What a process does at the moment, as far as its history says."""

    def __init__(self, process: subprocess.Popen[bytes] | None = None) -> None:
        self.process = process
        # By task, since several run at once in some.
        self.inside: dict[int, Entry] = {}
        self.asking: dict[int, Entry] = {}
        self.answers: dict[int, str] = {}

    def saw(self, entry: Entry) -> None:
        """Follow its history."""
        task = entry.of.get("i", -1)
        if entry.op == RUN and entry.phase == INVOKE:
            self.inside[task] = entry
        elif entry.op == RUN:
            self.inside.pop(task, None)
        elif entry.op == ACK and entry.phase == INVOKE:
            self.asking[task] = entry
        elif entry.op == ACK:
            self.asking.pop(task, None)
            self.answers[task] = entry.phase

    @property
    def latest(self) -> int:
        """The highest attempt at any task that it is in."""
        entries = (*self.inside.values(), *self.asking.values())
        return max((entry.of["attempt"] for entry in entries), default=0)

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of something."""
        return bool(self.inside or self.asking)


class _Freeze:
    """A worker that is frozen inside a task until another one has taken the task over."""

    def __init__(self, client: Client, process: subprocess.Popen[bytes], entry: Entry) -> None:
        self.client, self.process, self.entry = client, process, entry
        self.task: int = entry.of["i"]
        self.began = time.monotonic()
        self.successor: str | None = None

    @property
    def late(self) -> bool:
        return time.monotonic() > self.began + _LONGEST_FREEZE


class WorkNemesis(Nemesis):
    """Hurts workers, publisher and server.

    A freeze counts when the frozen worker, let go after another had begun its task, was told whether its
    acknowledgement was accepted.
    """

    # What waits for a moment that a clock ahead gave it waits so much longer when the clock is back, and
    # nothing must outlast the 300 s for which the server remembers requests and keys.
    leaps = (-120.0, -60.0, -3.0, 3.0, 15.0)

    def __init__(
        self,
        wanted: Mapping[str, int],
        gap: float,
        seed: int,
        clients: Sequence[Client],
        server: Server | None,
        *,
        holds: pathlib.Path,
        poison: Collection[int],
        only_at_work: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """`holds` is where tasks are named that must not be finished; kills may be `only_at_work`.

        `then` is called after each tick: how many faults there were may have changed.
        """
        super().__init__(wanted, gap, seed, clients, server)
        self.acts[PUBLISHER_KILL] = self.kill_publisher
        # How often nobody was at work whom one could hurt, killed workers that were, and freezes that
        # ended in a refused acknowledgement.
        self.idle = self.at_work = self.refused = 0
        self._at_work, self._waits = (1.0, 1.0) if only_at_work else (_AT_WORK, _WAITS_FOR_WORK)
        self._then = then
        self._holds = holds
        self._poison = poison
        self._hands: dict[str, Hand] = collections.defaultdict(Hand)
        self._runs: dict[int, list[str]] = collections.defaultdict(list)
        self._frozen: _Freeze | None = None
        # When one that looks for a worker to freeze finds that there is too little work.
        self._idle_at: float | None = None

    def saw(self, entry: Entry) -> None:
        """Learn who does what."""
        if entry.op == LIFE:
            # Another process in the same role.
            self._hands[entry.who] = Hand(self._named(entry.who).process)
        self._hands[entry.who].saw(entry)
        if entry.op == RUN and entry.phase == INVOKE:
            self._runs[entry.of["i"]].append(entry.who)
            if entry.of["i"] in self._poison:
                # It kills itself.
                self._named(entry.who).killed = True
        elif entry.op == RUN and entry.phase == OK and self._frozen is None:
            self._runs.pop(entry.of["i"], None)

    def tick(self) -> None:
        """Go on with what takes time, and do the next fault when it is due."""
        if self._frozen is not None:
            self._go_on(self._frozen)
        elif self._idle_at is not None:
            self._seek(self._idle_at)
        super().tick()
        self._then()

    def end(self) -> None:
        """Leave nobody frozen, and nothing away."""
        if self._frozen is not None:
            self._release(self._frozen)
        super().end()

    def victims(self) -> list[Client]:
        """Return whom to hurt: anybody but those under observation."""
        found = super().victims()
        if self._frozen is None:
            return found
        watched = (self._frozen.client.name, self._frozen.successor)
        return [
            one
            for one in found
            if one.name not in watched and self._frozen.task not in self._hand(one).inside
        ]

    def kill(self) -> bool | None:
        """Kill a worker with -9, most often one at work.

        Not always, and not in late attempts: when a single task is left, it would meet a death in each of
        them, and an innocent task would rightly be buried.
        """
        workers = [one for one in self.victims() if one.name != PUBLISHER]
        busy = [
            one
            for one in workers
            if self._hand(one).busy and self._hand(one).latest < _LATE_ATTEMPT
        ]
        if not busy and self.chance.random() < self._waits:
            self.idle += 1
            return False
        one = self._kill(busy if busy and self.chance.random() < self._at_work else workers)
        self.at_work += one is not None and self._hand(one).busy
        return one is not None

    def kill_publisher(self) -> bool | None:
        """Kill the publisher with -9."""
        return self._kill([one for one in self.victims() if one.name == PUBLISHER]) is not None

    def _kill(self, victims: Sequence[Client]) -> Client | None:
        if not victims:
            return None
        one = self.chance.choice(victims)
        one.killed = True
        one.send(signal.SIGKILL)
        return one

    def freeze(self) -> bool | None:
        """Begin to look for a worker inside a task, to freeze it there."""
        if self._frozen is not None or self._idle_at is not None:
            return False
        self._idle_at = time.monotonic() + _LONGEST_SEARCH
        return None

    def _seek(self, idle_at: float) -> None:
        found = [
            (one, entry)
            for one in self.victims()
            for entry in self._hand(one).inside.values()
            if entry.of["attempt"] == 1 and by_hand(entry.of["i"])
        ]
        if not found:
            if time.monotonic() > idle_at:
                self.idle += 1
                self._idle_at = time.monotonic() + _LONGEST_SEARCH
            return
        client, entry = self.chance.choice(found)
        assert client.process is not None
        self._hold(entry.of["i"]).touch()
        client.send(signal.SIGSTOP)
        client.frozen = True
        self._frozen, self._idle_at = _Freeze(client, client.process, entry), None

    def _go_on(self, frozen: _Freeze) -> None:
        hand, task = self._hand(frozen.client), frozen.task
        if frozen.successor is None:
            if hand.inside.get(task) is not frozen.entry or frozen.late:
                # It had left the task when it was frozen: nothing can be learned from it.
                self._release(frozen)
                self.unproven(FREEZE)
                return
            others = [name for name in self._runs[task] if name != frozen.client.name]
            if others:
                frozen.successor = others[-1]
                frozen.client.send(signal.SIGCONT)
            return
        answer = hand.answers.get(task)
        if answer in (OK, FAIL):
            self._release(frozen)
            self.refused += answer == FAIL
            self.proven(FREEZE)
        elif answer == UNKNOWN or frozen.late or frozen.process.poll() is not None:
            self._release(frozen)
            self.unproven(FREEZE)

    def _release(self, frozen: _Freeze) -> None:
        if frozen.client.process is frozen.process:
            frozen.client.send(signal.SIGCONT)
            frozen.client.frozen = False
        self._hold(frozen.task).unlink(missing_ok=True)
        self._frozen = None

    def _hand(self, client: Client) -> Hand:
        """Return what the process does that has this role now: it may not have written anything yet."""
        found = self._hands[client.name]
        return found if found.process is client.process else Hand()

    def _hold(self, task: int) -> pathlib.Path:
        return self._holds / str(task)

    def _named(self, name: str) -> Client:
        return next(one for one in self.clients if one.name == name)
