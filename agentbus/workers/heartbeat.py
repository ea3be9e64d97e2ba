"""A worker's background threads: heartbeats, renewals of its tasks, due tasks, periodic maintenance."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.store.steps import Wait
from agentbus.workers.acker import order
from agentbus.workers.registry import ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.queues.runner import LastingRunner
    from agentbus.store.steps import Op


T = TypeVar("T")

# Seconds for which a worker must be busy before the threads make requests: most tasks end sooner.
_GRACE = 0.05
# Seconds until it is known how quick tasks are, so that some can be returned behind slow ones.
_SETTLES = 0.4
_READ_AT_ONCE = 1000
# Seconds between two attempts to wake the execution loop: another idle worker may have been woken.
_AGAIN = 0.005


class Chore(NamedTuple):
    """Periodic maintenance: `op` runs every `every` seconds, and at the start and end of a worker.

    While the worker is idle, it runs only if the worker has `worked` since, or if there are `outcomes` of
    tasks with dependents; `always`, it costs no request if nothing is to be done.
    """

    op: Callable[[], Op[object]]
    every: float = 1.0
    idle: Literal["always", "worked", "outcomes"] = "always"


class Heartbeat:
    """Renews a worker's tasks and its registration while handlers run.

    `relieve` is called from time to time; `beat` renews the registration; `rung` is called when the queue's
    bell stream gets an entry: due times may have changed. While the execution loop rests, it does this
    itself, and the threads only wait for due times and for the worker's end.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        runner: LastingRunner,
        renewal: Renewal,
        chores: Sequence[Chore],
        *,
        relieve: Callable[[], None],
        rung: Callable[[], None],
        beat: Callable[[], object],
        stopping: Callable[[], bool],
    ) -> None:
        self._consumer = consumer
        self._runner = runner
        self._renewal = renewal
        self._relieve = relieve
        self._chores = chores
        self._rung = rung
        self._beat = beat
        self._stopping = stopping
        self._intervals = consumer.scope.intervals
        self._next_beat = 0.0
        self._next = dict.fromkeys(chores, 0.0)
        self._over = threading.Event()
        self._bell = consumer.scope.keys.bell(consumer.queue)
        # An idle server ends a blocked read up to 0.1 s late, so due times are waited for here. A signal
        # handler may call `put` during `get` in the same thread, which this class allows.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._ordered = False
        # True while the execution loop rests, and while the thread then waits for it.
        self._resting = False
        self._parked = False
        # When the next delayed task is due, while the loop rests.
        self._due_at = math.inf
        self._passing_on = False
        self._busy_since = 0.0
        self._working = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="agentbus-heartbeat", daemon=True)
        self._listener = threading.Thread(
            target=self._listen, name="agentbus-listener", daemon=True
        )

    def start(self) -> None:
        """Do everything once, then start the thread."""
        self._work(at_once=True)
        self._keeper.start()

    def end(self) -> None:
        """Stop the threads, then do everything once more."""
        self._over.set()
        self._wake.put(None)
        self._keeper.join()
        self._working.set()
        if self._listener.ident is not None:
            self._runner.run(ring(self._bell))
            self._listener.join()
        self._work(at_once=True)

    def rest(self) -> None:
        """Leave the server to the execution loop, which holds no task."""
        self._resting = True
        self._working.clear()

    def resume(self) -> None:
        """Go on as soon as the execution loop has been busy for a while."""
        self._resting = False
        # Read after that was set: either this sees that the thread waits, or the thread sees it.
        if self._parked:
            self._wake.put(None)

    def interrupt(self) -> None:
        """Wake the execution loop if it rests, because it has to stop; safe in a signal handler."""
        self._wake.put(None)

    def expect(self, due_at: float) -> None:
        """Promote delayed tasks at a time (`time.monotonic`), while the execution loop rests."""
        self._due_at = due_at
        if due_at < math.inf:
            # The thread may wait for something else, such as whether the loop stays busy.
            self._wake.put(None)

    def pass_on(self) -> None:
        """Let another idle worker look at what is due."""
        self._passing_on = True

    def look(self, *, worked: bool, outcomes: bool) -> None:
        """Do the maintenance that an idle worker needs; called by the execution loop."""
        # Nothing is held, so this sends nothing: it notes that the process was not frozen.
        self._renewal.renew()
        now = time.monotonic()
        self._next_beat = now + self._intervals.beat
        wanted = {"always": True, "worked": worked, "outcomes": outcomes}
        self._do([chore for chore in self._chores if wanted[chore.idle]], now)

    def _listen(self) -> None:
        """Wait for entries in the bell stream."""
        tail = "0-0"
        while not self._over.is_set():
            if not self._working.is_set():
                self._working.wait()
                continue
            try:
                news = self._runner.run(self._news(tail))
            except AgentBusError:
                # The execution loop raises the same error from its own requests.
                self._over.wait(self._intervals.look)
                continue
            for entry_id, ordered in news:
                tail = entry_id
                self._ordered = self._ordered or ordered
                self._rung()
                self._wake.put(None)

    def _news(self, tail: str) -> Op[list[tuple[str, bool]]]:
        """Return the entries of the bell past an id, and whether each announces an order."""
        entries = yield Wait(self._bell, tail, self._intervals.look, _READ_AT_ONCE)
        return [(text(entry_id), fields[0] == b"order") for entry_id, fields in entries]

    def _keep(self) -> None:
        while not self._over.is_set():
            if self._resting:
                self._park()
                continue
            if not self._working.is_set():
                if self._passing_on:
                    self._passing_on = False
                    self._try(ring(self._bell))
                self._sleep(_GRACE)
                if self._resting or self._over.is_set():
                    continue
                self._listen_now()
                continue
            wait = self._intervals.look
            ordered, self._ordered = self._ordered, False
            settled_in = time.monotonic() - self._busy_since > _SETTLES
            if not settled_in:
                wait = min(wait, _SETTLES)
            try:
                _, due = self._runner.run(self._consumer.promote())
                if settled_in:
                    self._relieve()
                self._work(ordered=ordered)
                if due is not None:
                    wait = min(wait, due)
            except AgentBusError:
                self._over.wait(self._intervals.look)
            self._sleep(min(wait, self._renewal.due_in))

    def _listen_now(self) -> None:
        """Let the listener read the bell, unless the execution loop has just begun to rest."""
        self._busy_since = time.monotonic()
        self._working.set()
        if self._listener.ident is None:
            self._listener.start()
        if self._resting:
            self._working.clear()

    def _park(self) -> None:
        """Wait until the execution loop is busy again; promote tasks and wake the loop meanwhile."""
        self._parked = True
        if self._resting and not self._stopping():
            self._sleep(self._due_at - time.monotonic())
        self._parked = False
        if not self._resting or self._over.is_set():
            return
        if self._stopping():
            self._try(ring(self._bell))
            self._sleep(_AGAIN)
        elif time.monotonic() >= self._due_at:
            self._due_at = math.inf
            moved, due = self._try(self._consumer.promote()) or (0, None)
            if due is not None:
                # A task that cannot be moved must not keep the server busy.
                due = _GRACE if due <= 0 and not moved else due
                self._due_at = min(self._due_at, time.monotonic() + due)

    def _sleep(self, seconds: float) -> None:
        """Wait until something happens, for at most `seconds`."""
        with contextlib.suppress(Empty):
            self._wake.get(timeout=None if seconds == math.inf else max(0.001, seconds))
            # Handle together what was put together.
            while True:
                self._wake.get_nowait()

    def _try(self, op: Op[T]) -> T | None:
        try:
            return self._runner.run(op)
        except AgentBusError:
            # The execution loop raises the same error from its own requests.
            return None

    def _work(self, *, at_once: bool = False, ordered: bool = False) -> None:
        now = time.monotonic()
        if self._renewal.due_in <= 0:
            self._renewal.renew()
        if at_once or ordered or now >= self._next_beat:
            # The reply contains the orders.
            self._next_beat = now + self._intervals.beat
            self._beat()
        self._do(self._chores, now, at_once=at_once)

    def _do(self, chores: Sequence[Chore], now: float, *, at_once: bool = False) -> None:
        for chore in chores:
            if at_once or now >= self._next[chore]:
                self._next[chore] = now + chore.every
                try:
                    self._runner.briefly(chore.op())
                except AgentBusError:
                    # It runs again soon; maintenance must not end a worker.
                    continue


class Renewal:
    """Sends heartbeats for the tasks that a worker holds; thread-safe.

    A task that another worker has taken over is added to those that this consumer must not start. `held`
    returns the tasks. `at` is the time before the last heartbeat, by `time.monotonic`.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        run: Callable[[Op[Any]], Any],
        held: Callable[[], Iterable[Taken]],
        visibility: float,
    ) -> None:
        self._consumer = consumer
        self._run = run
        self._held = held
        self.every = visibility / 3
        # After this long without one, others may soon take the tasks over: the process was frozen.
        self._overdue = visibility / 2
        self._renewing = threading.Lock()
        self._lost: set[tuple[str, bytes]] = set()
        self.at = time.monotonic()

    @property
    def due_in(self) -> float:
        """In how many seconds the next heartbeat is due; negative after that."""
        return self.at + self.every - time.monotonic()

    def overdue(self, now: float, since: float | None = None) -> bool:
        """Return whether tasks that were renewed, or taken, at `since` may be lost."""
        return now - (self.at if since is None else since) > self._overdue

    def catch_up(self, now: float) -> None:
        """Renew the tasks if that is overdue, before another one begins."""
        if self.overdue(now):
            self.renew()

    def renew(self) -> None:
        """Send a heartbeat for all tasks."""
        with self._renewing:
            at = time.monotonic()
            held: dict[str, list[bytes]] = {}
            for task in self._held():
                held.setdefault(task.priority, []).append(task.entry_id)
            gone: set[tuple[str, bytes]] = set()
            for priority, ids in held.items():
                op = self._consumer.heartbeat(priority, sorted(ids, key=order))
                lost = self._run(self._consumer.unless_missing(op, []))
                gone.update((priority, entry_id) for entry_id in lost)
            self.at = at
            if gone or self._lost:
                self._note(gone)

    def _note(self, gone: set[tuple[str, bytes]]) -> None:
        """Mark the lost tasks, except those that were settled meanwhile."""
        held = {task.place for task in self._held()}
        stopping = self._consumer.stopping
        stopping.difference_update(self._lost - held)
        self._lost = (self._lost & held) | (gone & held)
        stopping.update(self._lost)
