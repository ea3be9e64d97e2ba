"""A worker's background threads: heartbeats, task renewals, due tasks, periodic maintenance."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from agentbus.core import loggers
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

# Seconds for which a worker must be busy before the threads make requests; most tasks end sooner.
_GRACE = 0.05
# Seconds after which the duration of tasks is known well enough to return tasks that wait behind
# slow ones.
_SETTLES = 0.4
_READ_AT_ONCE = 1000
# Seconds between two attempts to wake the execution loop, since another idle worker may wake
# instead.
_AGAIN = 0.005
# Number of tasks that a warning names.
_NAMED = 3


class Chore(NamedTuple):
    """Periodic maintenance: `op` runs every `every` seconds, and at the start and end of a worker.

    While the worker is idle, the chore runs only if the worker has `worked` since, or if there are
    `outcomes` of tasks with dependents. With `always`, it costs no request if there is nothing to do.
    """

    op: Callable[[], Op[object]]
    every: float = 1.0
    idle: Literal["always", "worked", "outcomes"] = "always"


class Heartbeat:
    """Renews a worker's tasks and its registration while handlers run.

    `relieve` is called periodically; `beat` renews the registration; `rung` is called when the queue's bell
    stream gets an entry, since due times may have changed. While the execution loop rests, it does this
    work itself, and the threads only wait for due times and for the worker's end.
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
        # Wait for due times here, since an idle server ends a blocked read up to 0.1 s late.
        # SimpleQueue is reentrant: a signal handler may call `put` during `get` in the same thread.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._ordered = False
        # True if the execution loop rests, and whether the heartbeat thread waits for it to resume.
        self._resting = False
        self._parked = False
        # Time at which the next delayed task is due while the loop rests.
        self._due_at = math.inf
        self._passing_on = False
        self._busy_since = 0.0
        self._working = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="agentbus-heartbeat", daemon=True)
        self._listener = threading.Thread(
            target=self._listen, name="agentbus-listener", daemon=True
        )

    def start(self) -> None:
        """Run all maintenance once, then start the thread."""
        self._work(at_once=True)
        self._keeper.start()

    def end(self) -> None:
        """Stop the threads, then run all maintenance once more."""
        self._over.set()
        self._wake.put(None)
        self._keeper.join()
        self._working.set()
        if self._listener.ident is not None:
            self._runner.run(ring(self._bell))
            self._listener.join()
        self._work(at_once=True)

    def rest(self) -> None:
        """Leave all requests to the execution loop while it holds no task."""
        self._resting = True
        self._working.clear()

    def resume(self) -> None:
        """Resume once the execution loop has been busy for a while."""
        self._resting = False
        # Set `_resting` before reading `_parked`, so that either this thread or the heartbeat
        # thread notices the other.
        if self._parked:
            self._wake.put(None)

    def interrupt(self) -> None:
        """Wake a resting execution loop because it has to stop; safe in a signal handler."""
        self._wake.put(None)

    def expect(self, due_at: float) -> None:
        """Promote delayed tasks at a given time (`time.monotonic`), while the execution loop rests."""
        self._due_at = due_at
        if due_at < math.inf:
            # Wake the thread from any other wait, so that it notices the new time.
            self._wake.put(None)

    def pass_on(self) -> None:
        """Let another idle worker handle the due tasks."""
        self._passing_on = True

    def look(self, *, worked: bool, outcomes: bool) -> None:
        """Do the maintenance that an idle worker needs; called by the execution loop."""
        # Without held tasks this sends no request; it only records that the process is not frozen.
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
                continue
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
        """Wait until the execution loop is busy again; in the meantime, promote tasks and wake the loop."""
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
                # A due task that cannot be moved must not keep the server busy.
                due = _GRACE if due <= 0 and not moved else due
                self._due_at = min(self._due_at, time.monotonic() + due)

    def _sleep(self, seconds: float) -> None:
        """Wait for a wakeup, for at most `seconds`."""
        with contextlib.suppress(Empty):
            self._wake.get(timeout=None if seconds == math.inf else max(0.001, seconds))
            # Handle all pending wakeups at once.
            while True:
                self._wake.get_nowait()
        self._renewal.check()

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
            # The reply to a heartbeat carries the worker's orders.
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
                    # The chore runs again soon; its failure must not end the worker.
                    continue


class Renewal:
    """Sends heartbeats for the tasks that a worker holds; thread-safe.

    Tasks that another worker has reclaimed are added to those that this consumer must not start. `held`
    returns the held tasks. `at` is the time just before the last heartbeat, and `answered_at` that of the
    last reply to a heartbeat, or with tasks, by `time.monotonic`.
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
        # Seconds without a heartbeat after which the process counts as frozen, before others
        # reclaim the tasks.
        self._overdue = visibility / 2
        self._renewing = threading.Lock()
        self._lost: set[tuple[str, bytes]] = set()
        self.at = self.answered_at = self._warned_of = time.monotonic()

    @property
    def due_in(self) -> float:
        """The seconds until the next heartbeat is due; negative if it is overdue."""
        return self.at + self.every - time.monotonic()

    def overdue(self, now: float, since: float | None = None) -> bool:
        """Return whether tasks last renewed, or taken, at `since` may have been reclaimed."""
        return now - (self.at if since is None else since) > self._overdue

    def catch_up(self, now: float) -> None:
        """If the heartbeat is overdue, renew the tasks before another one begins."""
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
            self.at, self.answered_at = at, time.monotonic()
            if gone or self._lost:
                self._note(gone)

    def check(self) -> None:
        """Log a heartbeat that is late by more than a third of the visibility: the tasks may run twice.

        The heartbeat thread calls this after it has slept, so a slow server does not count.
        """
        since, consumer = self.answered_at, self._consumer
        silence = time.monotonic() - since
        if silence <= 2 * self.every or since == self._warned_of:
            return
        self._warned_of = since
        ids = list(map(consumer.id_of, self._held()))
        if not ids:
            return
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        why = (
            f"no heartbeat was sent for {silence:.1f} s of a visibility of {3 * self.every:g} s, with the"
            f" tasks {', '.join(ids[:_NAMED])}{more} (group {consumer.group}): the handler held the GIL, or"
            " the process was frozen, and another worker may run them, too; give a larger visibility, or"
            " run the handler's code in another process"
        )
        fields: dict[str, object] = {
            "verb": "work",
            "agent": consumer.scope.agent,
            "project": consumer.scope.keys.project,
            "queue": consumer.queue,
            "group": consumer.group,
            "id": ids[0],
            "outcome": "late",
            "error": why,
            "duration_ms": round(silence * 1000),
        }
        loggers.emit("warning", fields, why)

    def _note(self, gone: set[tuple[str, bytes]]) -> None:
        """Mark lost tasks, except those that have been settled."""
        held = {task.place for task in self._held()}
        stopping = self._consumer.stopping
        stopping.difference_update(self._lost - held)
        self._lost = (self._lost & held) | (gone & held)
        stopping.update(self._lost)
