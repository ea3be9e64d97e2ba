"""One worker for the queues whose names match a pattern.

A queue has a separate worker, in a thread, only while it has work. A single connection waits for all other
queues together.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from agentbus.core import names
from agentbus.core.errors import AgentBusError, UsageError
from agentbus.core.signals import StopEvent, stops_at_signals
from agentbus.core.stream import text
from agentbus.queues import dependents
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.ids import RETRY
from agentbus.queues.janitor import Janitor
from agentbus.queues.runner import LastingRunner
from agentbus.store.failures import or_empty
from agentbus.store.scan import members
from agentbus.store.steps import Command, WaitAny, one_step
from agentbus.workers.executors import check_parameters
from agentbus.workers.fetcher import FIRST
from agentbus.workers.middleware import around
from agentbus.workers.pause import CYCLE, Gate
from agentbus.workers.registry import WorkerRegistration, ring
from agentbus.workers.slots import Slots
from agentbus.workers.worker import AnyWorker, own_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from agentbus.queues.runner import Runner
    from agentbus.store.steps import Op
    from agentbus.workers.middleware import Middleware

# Maximum seconds until a new queue is discovered.
DISCOVERY = 5.0
# Maximum queues per script, and queues with a running worker; further queues wait for their turn.
_AT_ONCE, _ACTIVE = 100, 16
# Seconds for which a worker may run while other queues wait for a turn.
_TURN = 1.0
# Maximum seconds beyond the visibility until a dead worker's tasks are reclaimed.
_RECLAIM = 30.0
_REFUSED = ("drain", "drain_timeout", "count")


class _Queue:
    """A queue that matches: its known state, and its worker while it has one."""

    def __init__(
        self, runner: Runner, queue: str, group: str, worker: str, visibility: float | None
    ) -> None:
        self.name = queue
        self.consumer = QueueConsumer(runner.scope, queue, group, worker)
        self.bell = runner.scope.keys.bell(queue)
        visibility = runner.policy(queue).visibility if visibility is None else visibility
        self.reclaim_every = min(_RECLAIM, visibility / 2)
        self.reclaim_at = 0.0
        # Start with a worker: the queue may have old tasks, and no group.
        self.wanted = True
        self.due_at = math.inf
        self.tails: dict[str, str] = {}
        self.running: _Running | None = None
        self.options: dict[str, Any] = {}


class _Running(NamedTuple):
    """The worker of a queue, its thread, and its start time."""

    worker: AnyWorker
    thread: threading.Thread
    began: float


class AnyMatchWorker:
    """Base of `MatchWorker` and `AsyncMatchWorker`."""

    def __init__(
        self,
        runner: Runner,
        pattern: str,
        handler: Callable[..., Any],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        arun: Callable[[Op[Any]], Any] | None = None,
        group: str = "default",
        concurrency: int = 1,
        middleware: Sequence[Middleware] = (),
        **options: Any,
    ) -> None:
        for option in _REFUSED:
            if options.get(option):
                raise UsageError(
                    f"a worker of many queues has no {option}",
                    hint="leave it out, or name one queue",
                )
        self.pattern = self.queue = names.name("pattern", pattern)
        self.group = names.name("group", group)
        self.name = own_name()
        self._scope = runner.scope
        self._blocking = runner
        self._runner = LastingRunner(runner)
        self._stopping = StopEvent()
        if callable(handler):
            check_parameters(handler)
        if middleware and callable(handler):
            handler = around(handler, middleware)
        if isinstance(concurrency, int) and concurrency > 0 and callable(handler):
            handler = Slots(concurrency).around(handler)
        self._handler = handler
        self._given: dict[str, Any] = {
            "loop": loop,
            "arun": arun,
            "group": group,
            "concurrency": concurrency,
        }
        self._given |= options
        # Validate options at start, not at the first task.
        self._make("x").dispose()
        self._queues: dict[str, _Queue] = {}
        self._done = self._failed = 0
        self._failures: SimpleQueue[BaseException] = SimpleQueue()
        self._counting = threading.RLock()
        scope = runner.scope
        self._gate = Gate(
            WorkerRegistration(scope, self.name, scope.agent, pattern, group, concurrency),
            self._runner.run,
            stop=self.stop,
            stopping=self._stopping.is_set,
            figures=lambda: (self.done, self.failed, 0),
        )
        self._bell = scope.keys.bell(pattern)
        self._tail = "0-0"
        self._janitor = Janitor(scope, runner.policies)
        self._discover_at = 0.0
        # Start of a queue's new group. In queues discovered later all tasks are new, so their
        # groups start at the first.
        self._options: dict[str, Any] = {}
        self._cycle = min(CYCLE * scope.intervals.beat, scope.intervals.alive / 2)
        self._news: SimpleQueue[bool] = SimpleQueue()

    @property
    def done(self) -> int:
        """The number of tasks that this worker has done and acknowledged."""
        with self._counting:
            return self._done + sum(running.worker.done for running in self._running())

    @property
    def failed(self) -> int:
        """The number of failed runs of the handler; their tasks are retried or dead."""
        with self._counting:
            return self._failed + sum(running.worker.failed for running in self._running())

    @property
    def queues(self) -> list[str]:
        """The names of the known queues that match."""
        return sorted(self._queues)

    def stop(self) -> None:
        """Stop after the running tasks are finished and acknowledged.

        Idempotent; any thread and a signal handler may call it.
        """
        self._stopping.set()
        self._runner.hurry()
        for running in self._running():
            running.worker.stop()
        self._gate.wake()
        self._news.put(True)

    def _make(self, queue: str, **options: Any) -> AnyWorker:
        given: dict[str, Any] = self._given | options
        return AnyWorker(self._blocking, queue, self._handler, **given)

    def _work(self) -> int:
        ringer = threading.Thread(target=self._ring, name="agentbus-ringer", daemon=True)
        ringer.start()
        try:
            self._gate.beat()
            while not self._stopping.is_set():
                self._run_once()
        finally:
            self.stop()
            for running in self._running():
                running.thread.join()
            self._news.put(False)
            ringer.join()
            with contextlib.suppress(AgentBusError):
                self._gate.withdraw()
                self._runner.run(one_step(Command("DEL", self._bell)))
        self._raise_failure()
        return self.done

    def _run_once(self) -> None:
        """Check all queues, start the necessary workers, and wait for news."""
        self._raise_failure()
        self._discover()
        until = time.monotonic() + self._cycle
        self._look()
        if self._start():
            # The running workers are making room: check again soon.
            until = min(until, time.monotonic() + _TURN / 4)
        until = min(until, *(queue.due_at for queue in self._queues.values()), math.inf)
        if self._stopping.is_set():
            return
        self._runner.trim()
        tails = {self._bell: self._tail}
        for queue in self._queues.values():
            if not queue.wanted and queue.running is None:
                tails |= queue.tails
        try:
            seconds = max(0.001, until - time.monotonic())
            news = self._runner.run(one_step(WaitAny(tails, seconds)))
        except AgentBusError:
            # A stream key holds a value of another type; the queue's own worker reports it.
            self._stopping.wait(self._cycle)
            return
        came = {text(stream): text(entries[-1][0]) for stream, entries in news}
        self._tail = came.get(self._bell, self._tail)
        for queue in self._queues.values():
            streams = queue.consumer.streams.values()
            queue.wanted = queue.wanted or any(stream in came for stream in streams)
        self._start()

    def _discover(self) -> None:
        now = time.monotonic()
        if now < self._discover_at:
            return
        self._discover_at = now + DISCOVERY
        names = self._runner.run(or_empty(members(self._scope.keys.queues), []))
        for name in sorted(set(names) - set(self._queues)):
            if matches(self.pattern, name):
                queue = _Queue(
                    *(self._blocking, name, self.group, self.name),
                    self._given.get("visibility"),
                )
                queue.options = self._options
                self._queues[name] = queue
        self._options = {"start": FIRST}
        for name in set(self._queues) - set(names):
            if self._queues[name].running is None:
                del self._queues[name]

    def _look(self) -> None:
        """Send heartbeats, and check the queues without a worker."""
        now = time.monotonic()
        idle = [queue for queue in self._queues.values() if self._is_idle(queue)]
        outcomes = False
        for at in range(0, max(1, len(idle)), _AT_ONCE):
            page = idle[at : at + _AT_ONCE]
            seen: list[Any] = []
            self._gate.beat(partial(self._watch, [queue.consumer for queue in page], seen))
            outcomes, states = seen
            for queue, state in zip(page, states, strict=True):
                self._note(queue, state, now)
        # Confirm a pause.
        self._gate.open()
        chores = [self._janitor.op()]
        if outcomes:
            chores.append(dependents.resolve(self._scope, dependents.CHORE))
        for chore in chores:
            with contextlib.suppress(AgentBusError):
                self._runner.briefly(chore)

    def _note(self, queue: _Queue, state: Sequence[Any], now: float) -> None:
        """Record the state of a queue that the script returned."""
        due, held, paused, rung, *ids = state
        queue.due_at, queue.tails = math.inf, {queue.bell: text(rung)}
        if paused or self._gate.held:
            # The next heartbeats check the queue again.
            return
        # Skip the retry stream, in which every task has a due time.
        for priority, last in zip(queue.consumer.streams, ids, strict=True):
            if priority != RETRY:
                queue.tails[queue.consumer.streams[priority]] = text(last)
        if due:
            queue.due_at = now + float(due) / 1000
        if queue.due_at <= now:
            queue.wanted, queue.due_at = True, math.inf
        if held and now >= queue.reclaim_at:
            queue.wanted, queue.reclaim_at = True, now + queue.reclaim_every

    def _watch(self, consumers: Sequence[QueueConsumer], seen: list[Any], *figures: Any) -> Op[Any]:
        registration = self._gate.registration
        orders, outcomes, states = yield from registration.watch_op(consumers, self.group, *figures)
        seen += (outcomes, states)
        return orders

    def _is_idle(self, queue: _Queue) -> bool:
        running = queue.running
        if running is None:
            return True
        if not running.worker.counted:
            return False
        queue.running = None
        return True

    def _start(self) -> bool:
        """Start the necessary workers in turns; return whether some queues have to wait."""
        if self._gate.held:
            return False
        wanted = [queue for queue in self._queues.values() if queue.wanted and self._is_idle(queue)]
        running = self._running()
        room = max(0, _ACTIVE - len(running))
        for queue in wanted[:room]:
            queue.wanted = False
            # Move a queue that gets its turn to the end.
            self._queues[queue.name] = self._queues.pop(queue.name)
            worker = self._make(queue.name, **queue.options)
            worker.leave_when_idle()
            thread = threading.Thread(
                target=self._run, args=(worker,), name="agentbus-queue", daemon=True
            )
            queue.running = _Running(worker, thread, time.monotonic())
            thread.start()
        if len(wanted) <= room:
            return False
        late = time.monotonic() - _TURN
        ready = [run for run in running if run.worker.lingers or run.began < late]
        # Stop workers without tasks first.
        ready.sort(key=lambda run: not run.worker.lingers)
        for run in ready[: len(wanted) - room]:
            run.worker.stop()
        return True

    def _run(self, worker: AnyWorker) -> None:
        """Run a queue's worker in its thread."""
        try:
            worker._work()
        except BaseException as failure:  # noqa: BLE001 (raised in the thread of `run`)
            self._failures.put(failure)
        finally:
            with self._counting:
                self._done += worker.done
                self._failed += worker.failed
                worker.counted = True
            # Wake the main loop, which from now on waits for this queue's tasks.
            self._news.put(True)

    def _running(self) -> list[_Running]:
        # A signal handler calls this, so take no lock.
        running = [run.running for run in list(self._queues.values())]
        return [run for run in running if run is not None and not run.worker.counted]

    def _raise_failure(self) -> None:
        if not self._failures.empty():
            raise self._failures.get()

    def _ring(self) -> None:
        """Wake the waiting main loop, for threads that must not make requests."""
        while self._news.get():
            with contextlib.suppress(AgentBusError):
                self._runner.run(ring(self._bell))


class MatchWorker(AnyMatchWorker):
    """Runs a handler for the tasks of all queues whose names match a pattern, for one group.

    `concurrency` is the number of tasks that run at once, in all queues together; the queues take turns.
    The other options are those of `Worker` except `drain` and `count`, and apply to each queue; None
    selects the queue's policy. New queues are discovered within 5 seconds.
    """

    @stops_at_signals
    def run(self) -> int:
        """Run until stopped, and return the number of tasks done; signals act as on `Worker.run`.

        If the server becomes unavailable, it retries without limit; raises `BackendUnavailable` if it was
        never reachable.
        """
        return self._work()


def matches(pattern: str, queue: str) -> bool:
    """Return whether a queue's name matches: `*` and `?` match any characters, `[ab]` one of several.

    The bus's own queues, whose names begin with `~`, match only a pattern that begins with `~`.
    """
    if queue.startswith("~") and not pattern.startswith("~"):
        return False
    return fnmatch.fnmatchcase(queue, pattern)
