"""What goes wrong while workers work: deaths, frozen processes, a server that is killed, a bad network."""

from __future__ import annotations

import collections
import pathlib
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from tests.history import ACCEPTED, BEGIN, DONE, FAILED, REFUSED, UNSURE, Event
from tests.proxy import Proxy
from tests.servers import Server
from tests.work_hands import by_hand

if TYPE_CHECKING:
    from tests.work_harness import Plan

KILL, SERVER_KILL, STOP, CUT, HALF_OPEN = "kill", "server_kill", "stop", "cut", "half_open"
# Outages in seconds: most are short, and some longer than a worker's deadline.
_OUTAGES = (0.0, 0.0, 0.1, 0.5, 2.0)
_SILENCE = (1.0, 4.0)
_LONGEST_STOP = 20.0


class Hand:
    """One worker process, behind a proxy of its own, and what its history says that it does."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], proxy: Proxy) -> None:
        self.name = name
        self.process = process
        self.proxy = proxy
        self.killed = self.worked = False
        # By task: several run at once in some.
        self.inside: dict[int, Event] = {}
        self.asking: dict[int, Event] = {}
        self.answers: dict[int, str] = {}

    def saw(self, event: Event) -> None:
        """Follow its history."""
        self.worked = True
        if event.what == BEGIN:
            self.inside[event.task] = event
        elif event.what == DONE:
            self.inside.pop(event.task, None)
            if by_hand(event.task):
                self.asking[event.task] = event
        elif event.what == FAILED:
            self.inside.pop(event.task, None)
        elif event.what in (ACCEPTED, REFUSED, UNSURE):
            self.asking.pop(event.task, None)
            self.answers[event.task] = event.what


class _Stop:
    """A worker that is frozen inside a task until another one has taken the task over."""

    def __init__(self, hand: Hand, event: Event, hold: pathlib.Path) -> None:
        self.hand, self.event, self.hold = hand, event, hold
        self.began = time.monotonic()
        self.successor: str | None = None
        self.resumed = False


class Nemesis:
    """Does its faults one after the other, in an order and with victims that a seed gives."""

    def __init__(
        self, plan: Plan, server: Server, hands: list[Hand], holds: pathlib.Path, seed: int
    ) -> None:
        self._plan = plan
        self._server = server
        self._hands = hands
        self._holds = holds
        self._chance = random.Random(seed)
        wanted = plan.faults()
        self._left = [kind for kind, number in wanted.items() for _ in range(number)]
        self._chance.shuffle(self._left)
        self.total = len(self._left)
        self.counts = dict.fromkeys(wanted, 0)
        self.refused = self.unproven = self.hunger = self.at_work = 0
        self._next = time.monotonic() + plan.gap
        self._next_hunger = 0.0
        self._server_back: float | None = None
        self._half_open: list[tuple[float, Proxy]] = []
        self._stop: _Stop | None = None
        self._begun: dict[int, list[str]] = collections.defaultdict(list)

    @property
    def done(self) -> int:
        """How many faults there were."""
        return sum(self.counts.values())

    @property
    def finished(self) -> bool:
        """Whether all faults were done and what they spoilt for a while is sound again."""
        spoilt = self._half_open or self._stop or self._server_back is not None
        return not self._left and not spoilt

    @property
    def idle(self) -> bool:
        """Whether there is no work left by which it could do the rest."""
        return self.hunger > 0 and not self._half_open and self._stop is None

    @property
    def serves(self) -> bool:
        """Whether the server runs."""
        return self._server_back is None

    def saw(self, event: Event) -> None:
        """Learn who began which task."""
        if event.what == BEGIN:
            self._begun[event.task].append(event.worker)

    def tick(self) -> None:
        """Go on with what takes time, and do the next fault when it is due."""
        now = time.monotonic()
        if self._server_back is not None and now >= self._server_back:
            self._server.start()
            self._server_back = None
        for until, proxy in list(self._half_open):
            if now >= until:
                proxy.forget()
                self._half_open.remove((until, proxy))
        if self._stop is not None:
            self._go_on(self._stop)
        if self._left and now >= self._next:
            does = {
                KILL: self._kill,
                SERVER_KILL: self._kill_server,
                STOP: self._freeze,
                CUT: self._cut,
                HALF_OPEN: self._silence,
            }
            if does[self._left[0]]():
                self.counts[self._left.pop(0)] += 1
                self._next = now + self._plan.gap * self._chance.uniform(0.5, 1.5)
            else:
                # It has begun, or there was nobody to do it to: another fault first, or more work.
                self._left.append(self._left.pop(0))
                if self._stop is None and now >= self._next_hunger:
                    self.hunger += 1
                    self._next_hunger = now + self._plan.gap

    def end(self) -> None:
        """Leave nobody frozen."""
        if self._stop is not None:
            self._release(self._stop)

    def _victims(self) -> list[Hand]:
        """Return whom to hurt: anybody but those under observation.

        Not rather those at work: when a single task is left, it would meet a death in every attempt,
        and an innocent task would rightly be buried.
        """
        watched = () if self._stop is None else (self._stop.hand.name, self._stop.successor)
        holder = None if self._stop is None else self._stop.event.task
        return [
            hand
            for hand in self._hands
            if hand.process.poll() is None
            and hand.name not in watched
            and holder not in hand.inside
        ]

    def _kill(self) -> bool:
        victims = self._victims()
        if victims:
            hand = self._chance.choice(victims)
            hand.killed = True
            self.at_work += bool(hand.inside or hand.asking)
            hand.process.kill()
        return bool(victims)

    def _kill_server(self) -> bool:
        if self._server_back is not None:
            return False
        self._server.kill()
        self._server_back = time.monotonic() + self._chance.choice(_OUTAGES)
        return True

    def _cut(self) -> bool:
        victims = self._victims()
        return bool(victims) and self._chance.choice(victims).proxy.cut(reset=True) > 0

    def _silence(self) -> bool:
        victims = self._victims()
        if not victims:
            return False
        proxy = self._chance.choice(victims).proxy
        deaf, mute = self._chance.choice(((True, False), (False, True), (True, True)))
        if not proxy.half_open(deaf=deaf, mute=mute):
            return False
        self._half_open.append((time.monotonic() + self._chance.uniform(*_SILENCE), proxy))
        return True

    def _freeze(self) -> bool:
        """Begin to freeze a worker; it counts when its acknowledgement was answered."""
        if self._stop is not None:
            return False
        victims = [
            (hand, event)
            for hand in self._victims()
            for event in hand.inside.values()
            if event.attempt == 1 and by_hand(event.task)
        ]
        if not victims:
            return False
        hand, event = self._chance.choice(victims)
        hold = self._holds / str(event.task)
        hold.touch()
        hand.process.send_signal(signal.SIGSTOP)
        self._stop = _Stop(hand, event, hold)
        return False

    def _go_on(self, stop: _Stop) -> None:
        task = stop.event.task
        late = time.monotonic() > stop.began + _LONGEST_STOP
        if not stop.resumed:
            if stop.hand.inside.get(task) is not stop.event or late:
                # It had left the task when it was frozen: nothing can be learned from it.
                self._release(stop)
                return
            others = [name for name in self._begun[task] if name != stop.hand.name]
            if others:
                stop.successor, stop.resumed = others[-1], True
                stop.hand.process.send_signal(signal.SIGCONT)
            return
        answer = stop.hand.answers.get(task)
        gone = stop.hand.process.poll() is not None
        if answer is None and not gone and not late:
            return
        self._release(stop)
        if answer in (ACCEPTED, REFUSED):
            self._left.remove(STOP)
            self.counts[STOP] += 1
            self.refused += answer == REFUSED
        else:
            self.unproven += 1

    def _release(self, stop: _Stop) -> None:
        stop.hand.process.send_signal(signal.SIGCONT)
        stop.hold.unlink(missing_ok=True)
        self._stop = None
