"""Upkeep beside a worker's handlers: signs of life, what falls due, and other chores."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.store.steps import Command, Wait, one_step
from agentbus.workers.acker import order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.queues.runner import LastingRunner
    from agentbus.store.steps import Op

_LONGEST_WAIT = 1.0
_SIGN_EVERY = 1.0


class Chore(Protocol):
    """Something that a worker does every so many seconds, and at its beginning and end."""

    every: float

    def op(self) -> Op[None]:
        """Return what is to be done."""


class Bookmark:
    """Notes how far a worker's group is."""

    every = 1.0

    def __init__(self, consumption: Consumption) -> None:
        self._consumer = consumption

    def op(self) -> Op[None]:
        """Note it."""
        return self._consumer.bookmark()


class Heartbeat:
    """A thread that keeps a worker's tasks its own, whatever the handlers do."""

    def __init__(
        self,
        consumption: Consumption,
        runner: LastingRunner,
        held: Callable[[], Iterable[Taken]],
        chores: Sequence[Chore],
        *,
        visibility: float,
        rung: Callable[[], None],
        beat: Callable[[], object],
    ) -> None:
        self._consumer = consumption
        self._runner = runner
        self._do = runner.run
        self._held = held
        self._chores = chores
        self._rung = rung
        self._sign = beat
        self._next_sign = 0.0
        self._next = dict.fromkeys(chores, 0.0)
        self._pulse = visibility / 3
        self._next_beat = time.monotonic() + self._pulse
        self._over = threading.Event()
        self._bell = consumption.scope.keys.bell(consumption.queue)
        # A server at rest ends a blocked read up to 0.1 s late, so what is due is waited for here.
        self._wake = threading.Event()
        self._ordered = False
        self._threads = [
            threading.Thread(target=work, name=f"agentbus-{name}", daemon=True)
            for name, work in (("keeper", self._keep), ("listener", self._listen))
        ]

    def start(self) -> None:
        """Begin; every chore is done once before this returns."""
        self._work(first=True)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End, when what is being done is done; every chore is done once more."""
        self._over.set()
        self._wake.set()
        self._do(_ring(self._bell))
        for thread in self._threads:
            thread.join()
        self._work(first=True)

    def _listen(self) -> None:
        """Wait for the bell."""
        tail = "0-0"
        while not self._over.is_set():
            try:
                news = self._do(one_step(Wait(self._bell, tail, _LONGEST_WAIT)))
            except AgentBusError:
                # Refused for now; the handlers' own requests tell whoever runs the worker.
                self._over.wait(_LONGEST_WAIT)
                continue
            for entry_id, fields in news:
                tail = text(entry_id)
                self._ordered = self._ordered or fields[0] == b"order"
                self._rung()
                self._wake.set()

    def _keep(self) -> None:
        """Do what is due."""
        while not self._over.is_set():
            wait = _LONGEST_WAIT
            self._wake.clear()
            ordered, self._ordered = self._ordered, False
            try:
                _, due = self._do(self._consumer.promote())
                self._work(ordered=ordered)
                if due is not None:
                    wait = min(wait, due)
            except AgentBusError:
                self._over.wait(_LONGEST_WAIT)
            self._wake.wait(max(0.001, min(wait, self._next_beat - time.monotonic())))

    def _work(self, *, first: bool = False, ordered: bool = False) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._pulse
            self._beat()
        if first or ordered or now >= self._next_sign:
            # Orders come with it.
            self._next_sign = now + _SIGN_EVERY
            self._sign()
        for chore in self._chores:
            if first or now >= self._next[chore]:
                self._next[chore] = now + chore.every
                try:
                    self._runner.briefly(chore.op())
                except AgentBusError:
                    # The next time is soon, and no chore is worth a worker.
                    continue

    def _beat(self) -> None:
        held: dict[str, list[bytes]] = {}
        for task in self._held():
            held.setdefault(task.priority, []).append(task.entry_id)
        for priority, ids in held.items():
            self._do(self._consumer.heartbeat(priority, sorted(ids, key=order)))


def _ring(bell: str) -> Op[None]:
    yield Command("XADD", bell, "MAXLEN", 1, "*", "stop", "1")
