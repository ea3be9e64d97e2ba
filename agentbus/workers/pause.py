"""Keeps a worker from fetching while it is paused or its heartbeat is too old, and waits while it is idle.

An idle worker waits for tasks, due times and orders on one connection.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.store.steps import Wait
from agentbus.workers.registry import ring

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.runner import LastingRunner
    from agentbus.store.steps import Op
    from agentbus.workers.fetcher import Fetcher
    from agentbus.workers.heartbeat import Heartbeat
    from agentbus.workers.registry import WorkerOrders, WorkerRegistration

    # Runs a fetch unless the worker is paused; see `Loop`.
    Allowed = Callable[[Callable[[], list[Taken]]], list[Taken] | None]
# Heartbeat intervals per idle cycle, which sends three requests: heartbeat, read, and check for
# cancelled tasks.
CYCLE = 1.5
# Seconds until a due retry that could not be taken is tried again.
_FRUITLESS = 0.05
_READ_AT_ONCE = 1000


class Halt:
    """Flags that let no task start: the worker stops, or is paused. Read before each task.

    If a handler forks its process, the child's flags stop it: only the parent is the worker.
    """

    __slots__ = ("forked", "paused", "stopped")

    def __init__(self) -> None:
        self.stopped = self.paused = self.forked = False

    def __call__(self) -> bool:
        return self.stopped or self.paused

    def leave_child(self, error: object) -> None:
        """End this process if it is a child that a handler forked, as Python ends after its code."""
        if not self.forked:
            return
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif isinstance(error, BaseException):
            traceback.print_exception(error)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


# The flags of the workers that run in this process.
RUNNING: set[Halt] = set()


def _stop_in_child() -> None:
    for halt in RUNNING:
        halt.stopped = halt.forked = True


os.register_at_fork(after_in_child=_stop_in_child)


@contextlib.contextmanager
def leaving_child() -> Iterator[None]:
    """End a child that the code of this block has forked, as Python ends after its code."""
    halt, error = Halt(), None
    RUNNING.add(halt)
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        RUNNING.discard(halt)
        halt.leave_child(error)


class Gate:
    """Applies the orders that heartbeats return; two threads use it.

    The execution loop calls `enter` before it fetches and `leave` afterwards; the heartbeat thread calls
    `beat` every second, and when the bell stream gets an entry. `run` runs an operation, `figures` returns
    the numbers of done, failed and running tasks, `stop` stops the worker, `cancel` stops some of its
    tasks. `halt` shows a pause to others.
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
        # True if a fetch was refused, so that it is unknown whether tasks are left.
        self.refused = False
        self._run = run
        self._stop = stop
        self.stopping = stopping
        self._figures = figures
        self._cancel = cancel
        self._beating = threading.Lock()
        self.halt = halt or Halt()
        self._taking = False
        self._said = ""
        # SimpleQueue is reentrant: a signal handler may call `put` during `get` in the same thread.
        self._wake: SimpleQueue[None] = SimpleQueue()

    @property
    def held(self) -> bool:
        """True if the worker is paused."""
        return self.halt.paused

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
        # Send one heartbeat at a time, so that an older reply cannot undo a newer one.
        with self._beating:
            state = self.state
            op = (send or self.registration.beat_op)(state, *self._figures())
            orders: WorkerOrders = self._run(op)
            self._said = state
            self.reason = orders.reason
            freed = self.held and not orders.paused
            self.halt.paused = orders.paused
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

        If it returned True, the caller must call `leave`.
        """
        # Set the flag first: either this thread sees the pause, or the heartbeat sees the fetch.
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
        """End the fetch for heartbeats once its request is sent; `leave` handles the reply."""
        self._taking = False

    def leave(self) -> bool:
        """End a fetch, and return whether its tasks may run; if not, the caller must return them."""
        if not self.registration.current:
            self.beat()
        self._taking = False
        if not self.held:
            return True
        self.refused = True
        return False

    def wake(self) -> None:
        """Wake a waiting execution loop; safe in a signal handler."""
        self._wake.put(None)

    def withdraw(self) -> None:
        """Remove the worker from the registry, if it is registered."""
        with self._beating:
            if self._said:
                self._run(self.registration.unregister_op())
                self._said = ""


# Seconds without a task after which a worker leaves its queue to the common wait; and seconds per
# read.
_LINGERS, _PART = 1.0, 0.1


class Idle:
    """Waits while a worker holds no task.

    One blocked read waits for new tasks and for entries of the queue's bell stream. Between two reads, a
    single script sends the heartbeat and returns the orders and the next due times. Until a task arrives,
    the background threads make no requests.
    """

    def __init__(
        self, fetcher: Fetcher, gate: Gate, runner: LastingRunner, heartbeat: Heartbeat
    ) -> None:
        self._fetcher = fetcher
        self._consumer = fetcher.consumer
        self._reclaimer = fetcher.reclaimer
        self._gate = gate
        self._runner = runner
        self._heartbeat = heartbeat
        intervals = self._consumer.scope.intervals
        self._brief = intervals.beat
        self._cycle = min(CYCLE * intervals.beat, intervals.alive / 2)
        if self._reclaimer.visibility < 4 * self._cycle:
            # With a longer cycle, the worker would seem frozen.
            self._cycle = self._reclaimer.visibility / 4
        # Times of the next check and of the next due retry, by `time.monotonic`.
        self._look_at = 0.0
        self._retry_at = math.inf
        # Time at which the wait last ended for a retry, and number of deferred tasks taken by then.
        self._left_at, self._aside = 0.0, -1
        self._rings: list[bytes] = []
        # True if this worker's bell group is believed to exist.
        self._listening = False
        self._bell = self._consumer.scope.keys.bell(self._consumer.queue)
        self._tail = "0-0"

    def wait(self, room: int, allowed: Allowed) -> list[Taken]:
        """Return new tasks, at most `room` of each priority; none if other work comes first.

        Such work is a due retry, a task of a dead worker, a pause, or the worker's end.
        """
        self._heartbeat.rest()
        try:
            return self._wait(room, allowed)
        finally:
            self._heartbeat.resume()

    def _wait(self, room: int, allowed: Allowed) -> list[Taken]:
        worked = True
        # A task that this worker has deferred may be due soon.
        due = min(self._consumer.due.values()) - self._consumer.scope.monotonic()
        self._look_at = min(self._look_at, time.monotonic() + due)
        while not self._gate.stopping():
            now = time.monotonic()
            if now >= self._retry_at:
                self._look_at, self._retry_at = 0.0, math.inf
                self._left_at, self._aside = now, self._fetcher.aside
                self._fetcher.look_again()
                return []
            if now >= self._look_at or not self._listening:
                if self._look(worked=worked):
                    return []
                worked = False
                continue
            until = min(self._look_at, self._retry_at)
            if worked:
                # After work, write the metrics as often as a busy worker does.
                until = min(until, now + self._brief)
            rings: list[bytes] = []
            taken = allowed(partial(self._listen, room, until - now, rings))
            if taken is None:
                return []
            if rings:
                self._rings += rings
                self._look_at = 0.0
            elif worked and not taken:
                self._look_at = 0.0
            if taken:
                if rings or self._retry_at < now + self._cycle:
                    # This worker is busy now, so let another one handle the due tasks.
                    self._heartbeat.pass_on()
                return taken
        return []

    def _listen(self, room: int, seconds: float, rings: list[bytes]) -> list[Taken]:
        op = self._fetcher.listen(room, max(0.001, seconds))
        try:
            taken, entry_ids, orders = self._runner.run(op)
        except AgentBusError:
            if not self._listening:
                raise
            # The bell may hold a value of another type, which the next check replaces.
            self._listening = False
            return []
        self._listening = self._listening and not self._consumer.missing
        rings += entry_ids
        if orders > 1:
            # Each order wakes one worker: pass the surplus on to others.
            self._runner.run(ring(self._bell, orders - 1, "order"))
        return taken

    def _look(self, *, worked: bool) -> bool:
        """Send a heartbeat, and return whether the wait is over."""
        registration, fetcher = self._gate.registration, self._fetcher
        if self._consumer.missing:
            self._runner.run(fetcher.prepare())
        rings, self._rings = self._rings, []
        send = partial(registration.idle_op, self._consumer, rings, listen=not self._listening)
        orders = self._gate.beat(send)
        self._listening = True
        now = time.monotonic()
        self._look_at = now + self._cycle
        expected = orders.expected
        assert expected is not None
        self._runner.trim()
        self._heartbeat.look(worked=worked, outcomes=expected.outcomes)
        delayed, retry = expected.delayed, expected.retry
        if delayed is not None and delayed <= 0:
            _, delayed = self._runner.run(self._consumer.promote())
        self._heartbeat.expect(math.inf if delayed is None else now + delayed)
        self._retry_at = math.inf if retry is None else now + retry
        if self._fetcher.aside == self._aside:
            # A due task that cannot be taken must not keep the server busy.
            self._retry_at = max(self._retry_at, self._left_at + _FRUITLESS)
        if expected.held and now >= self._reclaimer.due_at:
            self._look_at = 0.0
            return True
        return self._gate.held or self._gate.stopping()

    def on_pause(self) -> None:
        """Wait until the worker is no longer paused."""
        self._heartbeat.rest()
        try:
            while self._gate.held and not self._gate.stopping():
                self._look(worked=False)
                if self._gate.held and not self._gate.stopping():
                    self._runner.run(self._rung(max(0.001, self._look_at - time.monotonic())))
        finally:
            self._look_at = 0.0
            self._heartbeat.resume()

    def _rung(self, seconds: float) -> Op[None]:
        """Wait for entries of the bell."""
        for entry_id, _ in (yield Wait(self._bell, self._tail, seconds, _READ_AT_ONCE)):
            self._tail = text(entry_id)


class Leave:
    """The wait of a worker that ends when its queue is idle for a while, or paused."""

    def __init__(self, fetcher: Fetcher, runner: LastingRunner, stop: Callable[[], None]) -> None:
        self._fetcher = fetcher
        self._runner = runner
        self._stop = stop
        # Time at which the wait began; None while there are tasks.
        self._since: float | None = None

    @property
    def lingers(self) -> bool:
        """True if the worker has had nothing to do since its last task."""
        return self._since is not None

    def wait(self, room: int, allowed: Allowed) -> list[Taken]:
        """Return new tasks like `Idle.wait`, waiting only for a short time."""
        if self._since is None:
            self._since = time.monotonic()
        # Wait in short reads, so that the worker can make room for another queue's worker.
        left = min(_PART, max(0.001, self._since + _LINGERS - time.monotonic()))
        taken = allowed(lambda: self._runner.run(self._fetcher.wait(room, left)))
        if taken:
            self._since = None
        elif time.monotonic() >= self._since + _LINGERS:
            self._stop()
        return taken or []

    def on_pause(self) -> None:
        """Stop the worker."""
        self._stop()
