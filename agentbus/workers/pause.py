"""Stands between a worker and its queue: shut while the worker is paused, or has not asked for too long."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.workers.registry import WorkerOrders, WorkerRegistration


class Gate:
    """Lets a worker's loop take tasks or not, as its beats say; two threads use it.

    The loop calls `enter` before it takes and `leave` after; whoever looks after the worker calls
    `beat` every second and when the bell rings. `run` runs an operation, `figures` returns how many
    tasks are done, failed and running, `stop` makes the worker stop.
    """

    def __init__(
        self,
        registration: WorkerRegistration,
        run: Callable[[Any], Any],
        *,
        stop: Callable[[], None],
        stopping: Callable[[], bool],
        figures: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0),
    ) -> None:
        self.registration = registration
        self.reason: str | None = None
        # Set when tasks were refused: who wants to know whether any are left must look again.
        self.refused = False
        self._run = run
        self._stop = stop
        self.stopping = stopping
        self._figures = figures
        self._beating = threading.Lock()
        self._held = False
        self._taking = False
        self._said = ""
        # Its `put` may interrupt its `get` in the same thread, as a signal's handler does.
        self._wake: SimpleQueue[None] = SimpleQueue()

    @property
    def held(self) -> bool:
        """Whether nothing new may be begun."""
        return self._held

    @property
    def state(self) -> str:
        """What the next beat says: nobody who is taking tasks stands still."""
        if self._taking:
            return "working"
        if self.stopping():
            return "stopping"
        return "paused" if self._held else "working"

    def beat(self) -> WorkerOrders:
        """Show a sign of life, and do what was ordered."""
        # One at a time: an older answer must not undo a newer one.
        with self._beating:
            state = self.state
            orders: WorkerOrders = self._run(self.registration.beat_op(state, *self._figures()))
            self._said = state
            self.reason = orders.reason
            freed = self._held and not orders.paused
            self._held = orders.paused
        if orders.stop and not self.stopping():
            self._stop()
            self.wake()
        elif freed:
            self.wake()
        return orders

    def open(self, wait: float = 0.0) -> bool:
        """Tell whether tasks may be taken; if not, waits so long for that to change, and returns False."""
        if not self.enter(wait):
            return False
        self._taking = False
        return True

    def enter(self, wait: float = 0.0) -> bool:
        """Begin to take tasks, if nothing forbids it; else wait so long for that to change.

        After True, `leave` must be called.
        """
        # Said before looking: either this thread sees that it is held, or the beat sees it taking.
        self._taking = True
        if not self.registration.current:
            self.beat()
        if not self._held and not self.stopping():
            return True
        self._taking = False
        self.refused = True
        if self._said != self.state:
            self.beat()
        if wait and self._held and not self.stopping():
            with contextlib.suppress(Empty):
                self._wake.get(timeout=wait)
        return False

    def sent(self) -> None:
        """Say that the server was asked: what it gives is looked at by `leave`, however late that is."""
        self._taking = False

    def leave(self) -> bool:
        """End taking; tells whether what was taken may be run. If not, it is to be given back."""
        if not self.registration.current:
            self.beat()
        self._taking = False
        if not self._held:
            return True
        self.refused = True
        return False

    def wake(self) -> None:
        """Have a loop that waits look again; may be called by a signal's handler."""
        self._wake.put(None)

    def withdraw(self) -> None:
        """Leave the list of workers; nothing happens if it is not on it."""
        with self._beating:
            if self._said:
                self._run(self.registration.withdraw_op())
                self._said = ""
