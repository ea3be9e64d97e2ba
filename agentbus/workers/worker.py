"""A worker: fetches tasks of a queue, runs a handler for each, and settles them.

First deliveries are fetched and acknowledged in batches. Each attempt of a redelivered task is counted
before it starts, and a worker holds at most one task that a dead worker may have begun. A task that kills
its workers thus becomes dead after its last attempt, without affecting or delaying other tasks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.core import greenlets, names
from agentbus.core.errors import AgentBusError, UsageError
from agentbus.core.signals import StopEvent, stops_at_signals
from agentbus.core.stream import text
from agentbus.queues import dependents
from agentbus.queues.claimed import Taken
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import AnyDelivery, AsyncDelivery, Delivery
from agentbus.queues.ids import task_id
from agentbus.queues.janitor import Janitor
from agentbus.queues.retry import backoffs
from agentbus.queues.runner import LastingRunner
from agentbus.workers.acker import Acker
from agentbus.workers.concurrent import Concurrent, InFlight
from agentbus.workers.executors import (
    Batches,
    Finish,
    TimedBatches,
    check_parameters,
    executor,
    is_async,
)
from agentbus.workers.fetcher import FIRST, Fetcher, at_tail
from agentbus.workers.heartbeat import Chore, Heartbeat, Renewal
from agentbus.workers.loop import Drain
from agentbus.workers.metrics import Tally
from agentbus.workers.middleware import around
from agentbus.workers.pause import RUNNING, Gate, Halt, Idle, Leave
from agentbus.workers.pool import Pool
from agentbus.workers.reclaim import Reclaimer, seconds
from agentbus.workers.registry import WorkerRegistration
from agentbus.workers.serial import Serial

if TYPE_CHECKING:
    import asyncio

    from agentbus.queues.retry import Backoff
    from agentbus.queues.runner import Runner
    from agentbus.store.steps import Op
    from agentbus.workers.batch import Executor
    from agentbus.workers.middleware import Middleware

_MOST = 500
_MOST_AT_ONCE = 100_000
# Larger numbers lose precision in Lua scripts.
_MOST_TASKS = 2**53


class AnyWorker:
    """Base of `Worker` and `AsyncWorker`."""

    _heartbeat: Heartbeat | None = None
    _idle: Idle | Leave | None = None
    _leaves = False
    # True if a MatchWorker has added this worker's counts to its own.
    counted = False

    def __init__(
        self,
        runner: Runner,
        queue: str,
        handler: Callable[..., Any],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        arun: Callable[[Op[Any]], Any] | None = None,
        group: str = "default",
        concurrency: int = 1,
        batch: bool = False,
        attempts: int | None = None,
        visibility: float | None = None,
        drain: bool = False,
        drain_timeout: float | None = None,
        backoff: Backoff | Mapping[str, Backoff] | None = None,
        count: int | None = None,
        prefetch: int | None = None,
        start: str = FIRST,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        policy = runner.policy(queue)
        attempts = policy.attempts if attempts is None else attempts
        visibility = seconds(policy.visibility if visibility is None else visibility)
        if not callable(handler):
            raise UsageError(f"the handler is {handler!r}", hint="give a function")
        check_parameters(handler)
        handler = around(handler, middleware) if middleware else handler
        _check(concurrency=concurrency, attempts=attempts, count=count, prefetch=prefetch)
        if drain_timeout is not None and not drain:
            raise UsageError("a drain timeout needs drain", hint="give drain=True, or leave it out")
        scope = runner.scope
        self.name = own_name()
        self.queue = names.name("queue", queue)
        self.group = names.name("group", group)
        self._runner = LastingRunner(runner)
        self._do = self._runner.run
        self._stopping, self._halt = StopEvent(), Halt()
        self._drain = Drain(runner, queue, group, drain_timeout, self.stop) if drain else None
        self._consumer = QueueConsumer(
            *(scope, queue, group, self.name),
            kept=policy.results,
            letters_of=policy.dead_letters,
            recorded=policy.record_attempts,
            visibility=visibility,
        )
        self.tally = Tally(scope, queue, group, self.name, self._held)
        self._acker = Acker(
            self._consumer,
            self._do,
            self.tally,
            attempts=attempts,
            backoffs=backoffs(backoff, policy.backoff),
        )
        self._reclaimer = Reclaimer(self._consumer, self.tally, visibility)
        self._fetcher = Fetcher(
            *(self._consumer, self._reclaimer, self.tally), attempts=attempts, tail=at_tail(start)
        )
        self._renewal = Renewal(self._consumer, self._do, self._held, visibility)
        self._gate = self._make_gate(concurrency)
        self._consumer.progress.held = self._held
        self._loop = self._make_loop(
            handler,
            loop,
            arun,
            batch=batch,
            whole=prefetch is not None,
            timed=policy.record_attempts > 0,
            concurrency=concurrency,
            # With a single attempt, tasks that wait in this worker would become dead if it died.
            most=concurrency if attempts == 1 else prefetch or _MOST,
            limit=count,
        )
        self.chores: list[Chore] = [
            *(Chore(self.tally.flush), Chore(self._consumer.record_positions, idle="worked")),
            Chore(partial(dependents.resolve, scope, dependents.CHORE), idle="outcomes"),
            Chore(Janitor(scope, runner.policies).op),
        ]

    def _make_gate(self, concurrency: int) -> Gate:
        """Register this worker; return the gate that keeps it from fetching while it is paused."""
        scope = self._runner.scope
        registration = WorkerRegistration(
            *(scope, self.name, scope.agent, self.queue, self.group, concurrency)
        )
        registration.consumer = self._consumer
        return Gate(
            registration,
            self._do,
            stop=self.stop,
            stopping=self._stopping.is_set,
            figures=lambda: (self.done, self.failed, len(self._held())),
            cancel=self._cancel,
            halt=self._halt,
        )

    def _make_loop(
        self,
        handler: Callable[..., Any],
        loop: asyncio.AbstractEventLoop | None,
        arun: Callable[[Op[Any]], Any] | None,
        *,
        batch: bool,
        whole: bool,
        timed: bool,
        **limits: Any,
    ) -> Serial | Concurrent:
        """Return the execution loop for the handler: serial, serial with batches, or concurrent."""
        wrap: Callable[[Taken], AnyDelivery] = partial(Delivery, self._consumer, self._do)
        if is_async(handler) and not batch:
            wrap = partial(AsyncDelivery, self._consumer, arun or self._runner.arun)
        parts = (self._do, self._fetcher, self._acker, self._gate, wrap, self._renewal)
        cancelled, concurrency = self._consumer.stopping, limits["concurrency"]
        alone = executor(handler, loop=loop, stopping=self._halt, cancelled=cancelled, timed=timed)
        self._interrupt = alone.cancel
        if batch:
            kind = TimedBatches if timed else Batches
            several = kind(handler, Finish(loop, keep=True), cancelled=cancelled)
            return Serial(several, *parts, whole=whole, **limits)
        if concurrency == 1:
            return Serial(alone, *parts, **limits)
        in_flight = InFlight(concurrency, limits["most"], self._acker)
        self._interrupt = in_flight.cancel
        in_flight.pool = Pool(
            alone, concurrency, wrap, self._halt, in_flight.report, self._renewal, loop
        )
        return Concurrent(in_flight, *parts, **limits)

    @property
    def lingers(self) -> bool:
        """True if it has no task and is about to leave."""
        return isinstance(self._idle, Leave) and self._idle.lingers

    def leave_when_idle(self) -> None:
        """Make `run` end when the queue has been idle for a second, or is paused; the server is known."""
        self._leaves = self._runner.answered = True

    def dispose(self) -> None:
        """Stop the threads of a worker that is not running."""
        self._loop.close()

    def execute_by(self, executor: Executor) -> None:
        """Replace the executor of a serial worker, before it runs."""
        assert isinstance(self._loop, Serial)
        self._loop.executor = executor

    @property
    def done(self) -> int:
        """The number of tasks that this worker has done and acknowledged."""
        return self._acker.done

    @property
    def failed(self) -> int:
        """The number of failed runs of the handler; their tasks are retried or dead."""
        return self._acker.failed

    @property
    def buried(self) -> int:
        """The number of the group's tasks that became dead during a drain; 0 without `drain`."""
        return 0 if self._drain is None else self._drain.buried

    def stop(self) -> None:
        """Stop after the running tasks are finished and acknowledged.

        Idempotent; any thread and a signal handler may call it.
        """
        self._halt.stopped = True
        self._stopping.set()
        self._runner.hurry()
        self._gate.wake()
        if self._heartbeat is not None:
            self._heartbeat.interrupt()

    def _work(self) -> int:
        greenlets.check("a worker")
        with self._runner.beside():
            return self._run()

    def _run(self) -> int:
        heartbeat = self._heartbeat = Heartbeat(
            self._consumer,
            self._runner,
            self._renewal,
            self.chores,
            relieve=self._loop.relieve,
            # The bell also means that due times may have changed.
            rung=self._fetcher.look_again,
            beat=self._gate.beat,
            stopping=self._stopping.is_set,
        )
        # A drain repeatedly checks whether tasks are left, instead of waiting.
        if self._leaves:
            self._idle = Leave(self._fetcher, self._runner, self.stop)
        elif self._drain is None:
            self._idle = Idle(self._fetcher, self._gate, self._runner, heartbeat)
        self._loop.idle = self._idle
        self._do(self._fetcher.prepare())
        heartbeat.start()
        RUNNING.add(self._halt)
        try:
            if self._drain is not None:
                self._drain.start(self._do)
                # Tasks that are due now belong to the drain.
                self._do(self._consumer.promote())
            waits = self._drain is None
            while not self._loop.must_end:
                # Before it waits, a drain checks whether tasks are left.
                wait = self._runner.scope.intervals.fetch if waits or self._held() else 0.0
                handled = self._loop.turn(wait) if self._open(wait) else 0
                if self._drain is not None:
                    waits = not handled
                    if waits and not self._unfinished():
                        self._drain.ended = True
                        break
        except BaseException:
            # The exception may have interrupted a request whose reply holds tasks.
            self._consumer.doubtful = True
            raise
        finally:
            RUNNING.discard(self._halt)
            self.stop()
            self._end(heartbeat)
            if self._drain is not None:
                self._drain.close()
        if self._drain is not None:
            # The running tasks, which were finished after the timeout, may have been the last.
            self._drain.ended = self._drain.ended or (self._drain.late and not self._unfinished())
            self._drain.finish(self._do)
        return self.done

    def _unfinished(self) -> bool:
        """Return whether tasks are left, including those that other workers of the group hold."""
        return (
            bool(self._held())
            or self._reclaimer.unsettled
            or bool(self._do(self._fetcher.expects_tasks()))
        )

    def _end(self, heartbeat: Heartbeat) -> None:
        # If the server is unavailable, unsettled tasks are redelivered. An earlier error takes
        # precedence.
        for step in (
            self._loop.let_go,
            self._loop.close,
            self._give_back_strays,
            heartbeat.end,
            lambda: self._do(self._consumer.leave()),
            self._gate.withdraw,
        ):
            with contextlib.suppress(AgentBusError):
                step()

    def _give_back_strays(self) -> None:
        """Return the tasks of lost replies to the queue; all other tasks are settled."""
        self._do(self._reclaimer.recover(lambda _priority: []))
        self._acker.give_back(self._reclaimer.strays, received=False)
        self._reclaimer.strays = []

    def _run_once(self, wait: float) -> int:
        self._do(self._fetcher.prepare())
        if not self._open(wait):
            return 0
        self._do(self._consumer.promote())
        self._fetcher.look_again()
        RUNNING.add(self._halt)
        try:
            return self._loop.turn(wait) + self._loop.settle()
        finally:
            RUNNING.discard(self._halt)

    def _close(self) -> None:
        self.stop()
        self._loop.close()
        self._gate.withdraw()

    def _open(self, wait: float) -> bool:
        """Return whether tasks may be taken; if not, return unstarted ones, and wait."""
        if self._gate.held:
            self._loop.let_go()
        if self._gate.open(0.0 if self._idle is not None else wait):
            return True
        if self._idle is not None and not self._held():
            self._idle.on_pause()
        elif self._idle is not None:
            self._gate.open(wait)
        return False

    def _cancel(self, tasks: frozenset[str]) -> None:
        """Stop cancelled tasks: drop the unstarted ones, and interrupt coroutines."""
        consumer = self._consumer
        for task in self._held():
            place = task_id(text(task.entry_id), self.queue, task.priority)
            if place in tasks and task.place not in consumer.stopping:
                consumer.stopping.add(task.place)
                self._interrupt(task)

    def _held(self) -> list[Taken]:
        return [*self._loop.held, *self._reclaimer.strays]


class Worker(AnyWorker):
    """Runs a handler for the tasks of one queue, for one group.

    `concurrency` tasks run at once, at most 100,000: in threads, or in an event loop if the handler is
    asynchronous. With `batch`, the handler gets a list of deliveries. `attempts` is the maximum number of
    runs, `visibility` the seconds without a heartbeat after which other workers reclaim the tasks,
    `backoff` the delay before the next attempt, or a mapping from names of typed tasks to their delays;
    None selects the queue's policy. With `drain`, the worker ends when the group has no task queued,
    waiting for a retry, or held by any worker (for a dead worker, until the visibility ends); tasks that
    are not due yet, or wait for others, are left. `buried` is then the number of the group's tasks that
    became dead during the drain. A drain that has not ended after `drain_timeout` seconds is stopped. With
    `count`, the worker ends after that many tasks. `prefetch` is the maximum number of tasks that it holds;
    with `batch`, each list has that many, if available. A new group starts at the queue's oldest task, or
    with `start="tail"` after the newest; an existing one continues. `middleware` are functions `(delivery,
    call_next)` around the handler, outermost first.
    """

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._close()

    @stops_at_signals
    def run(self) -> int:
        """Run until stopped (with `drain`, until nothing is left), and return the number of tasks done.

        In the main thread, SIGTERM and SIGINT stop it like `stop`, unless the program handles them; a
        second signal ends the process at once. If the server becomes unavailable, the worker retries
        without limit. Raises `BackendUnavailable` if the server was never reachable, and `TimedOut` after
        the `drain_timeout`.
        """
        return self._work()

    def run_once(self, *, wait: float = 0.0) -> int:
        """Run the redelivered tasks, then one batch of new ones, and return the number of tasks run."""
        return self._run_once(wait)

    def close(self) -> None:
        """Stop the threads of a worker that is not running."""
        self._loop.close()


def own_name() -> str:
    """Return a name for a worker of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _check(**numbers: int | None) -> None:
    for what, number in numbers.items():
        if number is None and what in {"count", "prefetch"}:
            continue
        most = _MOST_AT_ONCE if what == "concurrency" else _MOST_TASKS
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or not 1 <= number <= most:  # type: ignore[operator]
            raise UsageError(f"the {what} is {number!r}", hint=f"give a number from 1 to {most:,}")
