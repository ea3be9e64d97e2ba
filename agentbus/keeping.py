"""Upkeep beside a worker's handlers: signs of life, what falls due, and other chores."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.errors import AgentBusError
from agentbus.settling import order
from agentbus.store import Command, Wait
from agentbus.stream import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentbus.consuming import Consumption
    from agentbus.patience import Patience
    from agentbus.store import Op
    from agentbus.taken import Taken

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
        self._task = consumption

    def op(self) -> Op[None]:
        """Note it."""
        return self._task.bookmark()


class Keeper:
    """A thread that keeps a worker's tasks its own, whatever the handlers do."""

    def __init__(
        self,
        consumption: Consumption,
        do: Patience,
        held: Callable[[], Iterable[Taken]],
        chores: Sequence[Chore],
        *,
        visibility: float,
        rung: Callable[[], None],
        beat: Callable[[], object],
    ) -> None:
        self._task = consumption
        self._do = do
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
        self._thread = threading.Thread(target=self._keep, name="agentbus-keeper", daemon=True)

    def start(self) -> None:
        """Begin; every chore is done once before this returns."""
        self._work(first=True)
        self._thread.start()

    def end(self) -> None:
        """End, when what is being done is done; every chore is done once more."""
        self._over.set()
        self._do(_ring(self._bell))
        self._thread.join()
        self._work(first=True)

    def _keep(self) -> None:
        tail, ordered = "0-0", False
        while not self._over.is_set():
            try:
                _, due = self._do(self._task.promote())
                self._work(ordered=ordered)
                wait = min(_LONGEST_WAIT, self._next_beat - time.monotonic())
                if due is not None:
                    wait = min(wait, due - self._task.scope.now())
                news = self._do(_one(Wait(self._bell, tail, max(wait, 0.001))))
                ordered = False
                for entry_id, fields in news:
                    tail = text(entry_id)
                    ordered = fields[0] == b"order"
                    self._rung()
            except AgentBusError:
                # Refused for now; the handlers' own requests tell whoever runs the worker.
                self._over.wait(_LONGEST_WAIT)

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
                    self._do.briefly(chore.op())
                except AgentBusError:
                    # The next time is soon, and no chore is worth a worker.
                    continue

    def _beat(self) -> None:
        held: dict[str, list[bytes]] = {}
        for task in self._held():
            held.setdefault(task.priority, []).append(task.entry_id)
        for priority, ids in held.items():
            self._do(self._task.heartbeat(priority, sorted(ids, key=order)))


def _one(step: Wait) -> Op[Any]:
    reply = yield step
    return reply


def _ring(bell: str) -> Op[None]:
    yield Command("XADD", bell, "MAXLEN", 1, "*", "stop", "1")
