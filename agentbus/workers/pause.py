"""Keeps a paused worker from fetching, and one whose heartbeat is too old."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.workers.registry import WorkerOrders, WorkerRegistration


class Gate:
    """Opens and shuts as the answers to heartbeats order; two threads use it.

    The execution loop calls `enter` before it fetches and `leave` after; the heartbeat thread calls `beat`
    every second and when the bell rings. `run` runs an operation, `figures` returns how many tasks are
    done, failed and running, `stop` makes the worker stop.
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
        # Set when a fetch was refused: whether any tasks are left is then unknown.
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
        """Whether nothing new may begin."""
        return self._held

    @property
    def state(self) -> str:
        """The state in the next beat: a worker that is fetching is not paused."""
        if self._taking:
            return "working"
        if self.stopping():
            return "stopping"
        return "paused" if self._held else "working"

    def beat(self) -> WorkerOrders:
        """Send a heartbeat, and follow the orders in its answer."""
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
        """Tell whether tasks may be fetched; if not, waits up to `wait` seconds, and returns False."""
        if not self.enter(wait):
            return False
        self._taking = False
        return True

    def enter(self, wait: float = 0.0) -> bool:
        """Begin to fetch, if the worker is not paused; else wait up to `wait` seconds for that.

        After True, `leave` must be called.
        """
        # Set before looking: either this thread sees that it is held, or the beat sees it fetching.
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
        """Note that the request was sent: `leave` judges its answer, however late that comes."""
        self._taking = False

    def leave(self) -> bool:
        """End a fetch; tells whether its tasks may run. If not, they must be given back."""
        if not self.registration.current:
            self.beat()
        self._taking = False
        if not self._held:
            return True
        self.refused = True
        return False

    def wake(self) -> None:
        """Wake a loop that waits; a signal handler may call this."""
        self._wake.put(None)

    def withdraw(self) -> None:
        """Leave the registry; nothing happens if the worker is not in it."""
        with self._beating:
            if self._said:
                self._run(self.registration.withdraw_op())
                self._said = ""
