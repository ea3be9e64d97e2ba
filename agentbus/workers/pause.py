"""Stops a worker from fetching while it is paused or its heartbeat is too old."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.store.steps import Op
    from agentbus.workers.registry import WorkerOrders, WorkerRegistration


class Halt:
    """Whether no task may start: the worker stops, or is paused. Read before each task."""

    __slots__ = ("paused", "stopped")

    def __init__(self) -> None:
        self.stopped = self.paused = False

    def __call__(self) -> bool:
        return self.stopped or self.paused


class Gate:
    """Applies the orders that heartbeats return; two threads use it.

    The execution loop calls `enter` before it fetches and `leave` after; the heartbeat thread calls `beat`
    every second and when the bell stream gets an entry. `run` runs an operation, `figures` returns the
    numbers of done, failed and running tasks, `stop` stops the worker, `cancel` stops some of its tasks.
    `halt` shows others a pause.
    """

    def __init__(
        self,
        registration: WorkerRegistration,
        run: Callable[[Any], Any],
        *,
        stop: Callable[[], None],
        stopping: Callable[[], bool],
        figures: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0),
        cancel: Callable[[frozenset[str]], None] = lambda _tasks: None,
        halt: Halt | None = None,
    ) -> None:
        self.registration = registration
        self.reason: str | None = None
        # Whether a fetch was refused: it is then unknown whether tasks are left.
        self.refused = False
        self._run = run
        self._stop = stop
        self.stopping = stopping
        self._figures = figures
        self._cancel = cancel
        self._beating = threading.Lock()
        self._halt = halt or Halt()
        self._taking = False
        self._said = ""
        # A signal handler may call `put` during `get` in the same thread, which this class allows.
        self._wake: SimpleQueue[None] = SimpleQueue()

    @property
    def held(self) -> bool:
        """Whether the worker is paused."""
        return self._halt.paused

    @property
    def state(self) -> str:
        """The state that the next heartbeat reports; a worker that is fetching is not paused yet."""
        if self._taking:
            return "working"
        if self.stopping():
            return "stopping"
        return "paused" if self.held else "working"

    def beat(self, send: Callable[..., Op[WorkerOrders]] | None = None) -> WorkerOrders:
        """Send a heartbeat, and apply the orders in its reply; `send` replaces `beat_op`."""
        # One at a time, so that an older reply does not undo a newer one.
        with self._beating:
            state = self.state
            op = (send or self.registration.beat_op)(state, *self._figures())
            orders: WorkerOrders = self._run(op)
            self._said = state
            self.reason = orders.reason
            freed = self.held and not orders.paused
            self._halt.paused = orders.paused
        if orders.cancelled:
            self._cancel(orders.cancelled)
        if orders.stop and not self.stopping():
            self._stop()
            self.wake()
        elif freed:
            self.wake()
        return orders

    def open(self, wait: float = 0.0) -> bool:
        """Return whether tasks may be fetched; if not, wait up to `wait` seconds for a change."""
        if not self.enter(wait):
            return False
        self._taking = False
        return True

    def enter(self, wait: float = 0.0) -> bool:
        """Begin a fetch and return True; if paused, wait up to `wait` seconds and return False.

        After True, the caller must call `leave`.
        """
        # Set first: either this thread sees the pause, or the heartbeat sees that it is fetching.
        self._taking = True
        if not self.registration.current:
            self.beat()
        if not self.held and not self.stopping():
            return True
        self._taking = False
        self.refused = True
        if self._said != self.state:
            self.beat()
        if wait and self.held and not self.stopping():
            with contextlib.suppress(Empty):
                self._wake.get(timeout=wait)
        return False

    def sent(self) -> None:
        """End the fetch for heartbeats once its request is sent; `leave` decides about its reply."""
        self._taking = False

    def leave(self) -> bool:
        """End a fetch, and return whether its tasks may run; if not, they must be returned."""
        if not self.registration.current:
            self.beat()
        self._taking = False
        if not self.held:
            return True
        self.refused = True
        return False

    def wake(self) -> None:
        """Wake a waiting loop; safe in a signal handler."""
        self._wake.put(None)

    def withdraw(self) -> None:
        """Remove the worker from the registry, if it is in it."""
        with self._beating:
            if self._said:
                self._run(self.registration.withdraw_op())
                self._said = ""
