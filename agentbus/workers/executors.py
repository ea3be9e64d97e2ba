"""Executors: run synchronous and asynchronous handlers serially or in batches, with time limits.

An executor returns the outcome of each task: the task itself if it is done without a result, or else a
`TaskOutcome`. At its time limit, a coroutine is cancelled, and a thread is asked to stop. If attempts are
logged, an executor also times each attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Container, Coroutine
from functools import partial
from inspect import isawaitable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from agentbus.core.context import current
from agentbus.core.errors import UsageError
from agentbus.queues import tracing
from agentbus.queues.claimed import ALONE
from agentbus.workers.batch import QUICK, TaskOutcome, expired_as, malformed
from agentbus.workers.pause import Halt

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.workers.batch import KeyOrder, TaskBatch

    Wrap = Callable[[Taken], AnyDelivery]
    Handler = Callable[[Any], Any]

    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery


_settled = attrgetter("settled")
# Envelope fields that affect a run or its settlement.
_PARTICULAR = ALONE | {"expires", "time_limit"}
_clock = time.monotonic


class _Executor:
    """Base of the serial executors; `finish` runs an awaitable and returns its result."""

    # True if tasks run one after the other, so that a failure stops the tasks with the same
    # ordering key.
    chains = True

    def __init__(
        self,
        handler: Handler,
        finish: Finish,
        stopping: Halt | None = None,
        cancelled: Container[tuple[str, bytes]] = (),
    ) -> None:
        self._handler = handler
        self._finish = finish
        self._stopping = stopping or Halt()
        # Places of tasks that must not start, or must stop.
        self._cancelled = cancelled
        self._traced = False
        # Interrupt or exit that ended a handler; it is not a failure of the task.
        self.interrupted: BaseException | None = None

    def look(self) -> None:
        """Look up the tracer once for a whole batch."""
        self._traced = tracing.tracer() is not None

    def close(self) -> None:
        """Close the executor's own event loop, if it has one."""
        self._finish.close()

    def cancel(self, task: Taken) -> None:
        """Interrupt the handler of a cancelled task, if possible; thread-safe."""

    @property
    def _must_end(self) -> bool:
        return self._stopping() or self.interrupted is not None

    def _run(self, subject: Any) -> object:
        # Even a synchronous function may return a coroutine, which must be awaited.
        result = self._handler(subject)
        if result is not None and isawaitable(result):
            return self._finish(result)
        return result

    def _failed(
        self, task: Taken, delivery: AnyDelivery, began: float, error: BaseException
    ) -> TaskOutcome:
        outcome = TaskOutcome(task)
        outcome.fail(error)
        self.interrupted = self.interrupted or _interrupt(error)
        return _ended(outcome, delivery, began)


class Inline(_Executor):
    """Runs a synchronous handler for each task, one after the other."""

    # True if a subclass extends `run_one`, so that the fast path cannot replace it.
    more = False
    # True if each attempt is timed.
    timed = False

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:  # noqa: PLR0915 (a call costs more)
        """Run the handler for each task, until stopped."""
        self.look()
        left, take, add = batch.left, batch.left.popleft, batch.outcomes.append
        halt, run_one, clock, handler = self._stopping, self.run_one, time.monotonic, self._handler
        cancelled, set_current, slow = self._cancelled, current.set, self._traced or self.more
        timed, now = self.timed, clock()
        if batch.order is not None:
            run_one, slow = partial(self._in_order, batch.order), True
        batch.plain = not slow
        try:
            while left and not (halt.stopped or halt.paused or self.interrupted is not None):
                before, now = now, clock()
                if now - before >= QUICK:
                    batch.slow.append(now - before)
                if now >= batch.look_at:
                    batch.look(now)
                    now = clock()
                    continue
                try:
                    task = take()
                except IndexError:
                    # The heartbeat thread has taken the remaining tasks.
                    break
                if (slow or cancelled or task.uncounted is not None or task.error is not None) or (
                    task.meta and not _PARTICULAR.isdisjoint(task.meta)
                ):
                    batch.plain = False
                    add(run_one(task, wrap, now))
                    continue
                # Inline `run_one` for plain tasks: each call costs time here.
                delivery = wrap(task)
                set_current(delivery)
                if timed:
                    task.began = now
                try:
                    result = handler(delivery)
                    if result is not None and isawaitable(result):
                        result = self._finish(result)
                except BaseException as error:  # noqa: BLE001 (it is kept)
                    outcome = self._failed(task, delivery, now, error)
                else:
                    if result is None and not delivery.settled:
                        if timed:
                            task.took = clock() - now
                        if task.uncounted is not None:
                            # The handler ran a durable step, whose record is removed when the task
                            # is settled.
                            batch.plain = False  # type: ignore[unreachable]
                        add(task)
                        continue
                    outcome = _ended(TaskOutcome(task, result), delivery, now)
                if timed:
                    task.took = clock() - now
                batch.plain = False
                add(outcome)
        finally:
            set_current(None)
            batch.clock(now)

    def _in_order(
        self, order: KeyOrder, task: Taken, wrap: Wrap, began: float
    ) -> TaskOutcome | Taken:
        if not order.admits(task):
            return TaskOutcome(task, begun=False)
        outcome = self.run_one(task, wrap, began)
        order.note_end(task, outcome)
        return outcome

    def run_one(self, task: Taken, wrap: Wrap, began: float) -> TaskOutcome | Taken:
        if task.error is not None:
            return malformed(task)
        if self._cancelled and task.place in self._cancelled:
            return TaskOutcome(task, begun=False)
        delivery = wrap(task)
        if "expires" in task.meta and (expired := delivery.expired):
            return expired_as(task, expired)
        if "time_limit" in task.meta:
            begin(task, delivery)
        current.set(delivery)
        try:
            run = self._run
            result = tracing.handle(run, delivery) if self._traced else run(delivery)
        except BaseException as error:  # noqa: BLE001 (it is kept)
            return self._failed(task, delivery, began, error)
        if result is None and not delivery.settled:
            return task
        return _ended(TaskOutcome(task, result), delivery, began)


class Coroutines(_Executor):
    """Runs an asynchronous handler for each task, one after the other, in an event loop."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # The asyncio task in which each AgentBus task runs.
        self._now: dict[int, asyncio.Task[Any] | None] = {}

    def cancel(self, task: Taken) -> None:
        """Cancel the coroutine that runs a task, in its event loop; thread-safe."""
        here = self._now.get(id(task))
        if here is not None:
            # If the event loop is closed, no handler is running.
            with contextlib.suppress(RuntimeError):
                here.get_loop().call_soon_threadsafe(self._cancel_now, task)

    def _cancel_now(self, task: Taken) -> None:
        # The AgentBus task may have ended, and the asyncio task may be running the next one.
        here = self._now.get(id(task))
        if here is not None:
            here.cancel()

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:
        self.look()
        self._finish(self._each(batch, wrap), self._interrupt)

    async def _each(self, batch: TaskBatch, wrap: Wrap) -> None:
        now = time.monotonic()
        while batch.left and not self._must_end:
            now = batch.clock(now)
            if now >= batch.look_at:
                # `look` sends requests, and must not block the caller's event loop.
                if self._finish.shared is None:
                    batch.look(now)
                else:
                    await asyncio.to_thread(batch.look, now)
                now = time.monotonic()
                continue
            try:
                task = batch.left.popleft()
            except IndexError:
                # The heartbeat thread has taken the remaining tasks.
                break
            order = batch.order
            if order is not None and not order.admits(task):
                batch.outcomes.append(TaskOutcome(task, begun=False))
                continue
            outcome = await self.run_one(task, wrap, now)
            if order is not None:
                order.note_end(task, outcome)
            batch.outcomes.append(outcome)
        batch.clock(now)

    def _interrupt(self, error: BaseException) -> None:
        self.interrupted = error

    async def run_one(self, task: Taken, wrap: Wrap, began: float) -> TaskOutcome | Taken:
        if task.error is not None:
            return malformed(task)
        if self._cancelled and task.place in self._cancelled:
            return TaskOutcome(task, begun=False)
        delivery = wrap(task)
        if "expires" in task.meta and (expired := delivery.expired):
            return expired_as(task, expired)
        handler = self._handler
        if "time_limit" in task.meta and (seconds := begin(task, delivery)):
            handler = within(seconds, handler)
        current.set(delivery)
        here = asyncio.current_task()
        self._now[id(task)] = here
        try:
            if self._traced:
                result = await tracing.ahandle(handler, delivery)
            else:
                result = await handler(delivery)
        except BaseException as error:  # noqa: BLE001 (it is kept)
            return self._failed(task, delivery, began, error)
        finally:
            self._now.pop(id(task), None)
            if here is not None and self._cancelled and task.place in self._cancelled:
                # Clear the cancellation: the next AgentBus task may run in this asyncio task.
                here.uncancel()
        if result is None and not delivery.settled:
            return task
        return _ended(TaskOutcome(task, result), delivery, began)


class Batches(_Executor):
    """Runs a handler once for a list of tasks."""

    chains = False

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:
        """Run the handler for all tasks together; if it raises, every task has failed."""
        outcomes, cancelled = batch.outcomes, self._cancelled
        sound: list[Taken] = []
        deliveries: list[AnyDelivery] = []
        keep, deliver = sound.append, deliveries.append
        for task in batch.whole():
            if task.error is not None:
                outcomes.append(malformed(task))
                continue
            if cancelled and task.place in cancelled:
                outcomes.append(TaskOutcome(task, begun=False))
                continue
            delivery = wrap(task)
            if "expires" in task.meta and (expired := delivery.expired):
                outcomes.append(expired_as(task, expired))
                continue
            if "time_limit" in task.meta:
                begin(task, delivery)
            keep(task)
            deliver(delivery)
        began, error = time.monotonic(), None
        if deliveries:
            try:
                tracing.handle_all(self._run, deliveries)
            except BaseException as failure:  # noqa: BLE001 (it is kept)
                error = failure
                self.interrupted = _interrupt(failure)
        if error is None and not any(map(_settled, deliveries)):
            # Without a failure or an early settlement, the tasks are their own outcomes.
            outcomes += sound
            return
        for task, delivery in zip(sound, deliveries, strict=True):
            outcome = _ended(TaskOutcome(task), delivery, began)
            outcome.took /= len(sound)
            if error is not None and outcome.error is None:
                outcome.fail(error)
            outcomes.append(outcome)


class Finish:
    """Runs an awaitable from a synchronous thread, in its own event loop or in a running one.

    If a loop runs in that very thread, as in a notebook, its own one runs in another thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None, *, keep: bool) -> None:
        self.shared = loop
        self._keep = keep
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __call__(
        self, awaitable: Awaitable[Any], interrupted: Callable[[BaseException], None] | None = None
    ) -> Any:
        """Return the awaitable's result; an interrupt cancels it and is passed to `interrupted`."""
        if self.shared is None and asyncio._get_running_loop() is not None:
            self.shared = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self.shared.run_forever, name="agentbus-handlers", daemon=True
            )
            self._thread.start()
        if self.shared is not None:
            return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.shared).result()
        if not self._keep:
            # Several threads may call this at once, so each gets a new event loop.
            return asyncio.run(_awaited(awaitable))
        if self._own is None:
            self._own = asyncio.new_event_loop()
        running = self._own.create_task(_awaited(awaitable))
        try:
            return self._own.run_until_complete(running)
        except BaseException as error:
            if running.done() or interrupted is None:
                raise
            interrupted(error)
            running.cancel()
            return self._own.run_until_complete(running)

    def close(self) -> None:
        """Close its own event loop, if it has one."""
        if self._thread is not None and self.shared is not None:
            asyncio.run_coroutine_threadsafe(self.shared.shutdown_asyncgens(), self.shared).result()
            self.shared.call_soon_threadsafe(self.shared.stop)
            self._thread.join()
            self.shared.close()
            self.shared = self._thread = None
        if self._own is not None and not self._own.is_closed():
            self._own.run_until_complete(self._own.shutdown_asyncgens())
            self._own.close()
        self._own = None


def is_async(handler: Handler) -> bool:
    """Return whether a handler, or its `__call__` method, is a coroutine function."""
    return inspect.iscoroutinefunction(called(handler))


def check_parameters(handler: Handler) -> None:
    """Raise `UsageError` for a handler that fails on every task, because it does not take one argument."""
    try:
        # A decorator may pass more arguments than its wrapper takes.
        inspect.signature(handler, follow_wrapped=False).bind(None)
    except TypeError as error:
        raise UsageError(
            f"the handler cannot be called with a delivery alone: {error}",
            hint="give a function of one argument",
        ) from None
    except ValueError:
        # Some functions in C have no signature.
        return


def called(handler: Handler) -> Handler:
    """Return the function that a call of a handler runs: the handler itself, or its `__call__`."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler if inspect.isroutine(handler) else type(handler).__call__


def _awaited(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    if inspect.iscoroutine(awaitable):
        return awaitable

    async def wait() -> Any:
        return await awaitable

    return wait()


def _ended(outcome: TaskOutcome, delivery: AnyDelivery, began: float) -> TaskOutcome:
    outcome.took = time.monotonic() - began
    outcome.settled, outcome.acked = delivery.settled, delivery.acked
    if outcome.settled and (failure := getattr(delivery, "failure", None)) is not None:
        outcome.settled = False
        outcome.fail(failure)
    return outcome


def _interrupt(error: BaseException) -> BaseException | None:
    """Return the error if it must end the worker, not only the task."""
    return None if isinstance(error, (Exception, asyncio.CancelledError)) else error


_inline, _coroutine = Inline.run_one, Coroutines.run_one


class TimedInline(Inline):
    """Runs a synchronous handler, and times each attempt."""

    timed = True

    def run_one(self, task: Taken, wrap: Wrap, began: float) -> TaskOutcome | Taken:
        task.began = began
        outcome = _inline(self, task, wrap, began)
        task.took = _clock() - began
        if outcome is not task:
            _unmade(outcome)
        return outcome


class TimedCoroutines(Coroutines):
    """Runs an asynchronous handler, and times each attempt."""

    async def run_one(self, task: Taken, wrap: Wrap, began: float) -> TaskOutcome | Taken:
        task.began = began
        outcome = await _coroutine(self, task, wrap, began)
        task.took = _clock() - began
        if outcome is not task:
            _unmade(outcome)
        return outcome


class TimedBatches(Batches):
    """Runs a handler for a list of tasks, dividing its time among them."""

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:
        before = len(batch.outcomes)
        tasks = list(batch.left)
        began = _clock()
        for task in tasks:
            # Set the start before the run, in which the handler may settle the task.
            task.began = began
        super().__call__(batch, wrap)
        took = (_clock() - began) / max(1, len(tasks))
        for task in tasks:
            task.took = took
        for outcome in batch.outcomes[before:]:
            _unmade(outcome)


def _unmade(outcome: TaskOutcome | Taken) -> None:
    """Remove the start time of an attempt not made: its task is malformed, expired or cancelled."""
    if isinstance(outcome, TaskOutcome) and (not outcome.begun or isinstance(outcome.error, str)):
        del outcome.task.began


def executor(
    handler: Handler,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    stopping: Halt | None = None,
    cancelled: Container[tuple[str, bytes]] = (),
    timed: bool = False,
) -> Inline | Coroutines:
    """Return the serial executor for this kind of handler; it times attempts if `timed`."""
    if is_async(handler):
        kind = TimedCoroutines if timed else Coroutines
        return kind(handler, Finish(loop, keep=True), stopping, cancelled)
    return (TimedInline if timed else Inline)(
        handler, Finish(loop, keep=False), stopping, cancelled
    )


def begin(task: Taken, delivery: AnyDelivery) -> float | None:
    """Return the time limit of an attempt in seconds, and set the deadline of its delivery."""
    seconds = task.time_limit
    if seconds is not None:
        delivery.over_at = time.monotonic() + seconds
    return seconds


def within(
    seconds: float, handler: Callable[[Any], Awaitable[object]]
) -> Callable[[Any], Awaitable[object]]:
    """Return a coroutine function that cancels the handler, and raises `TimeoutError`, after `seconds`.

    A handler that nevertheless ends without an error has done its task.
    """

    async def handle(delivery: Any) -> object:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await handler(delivery)
        except TimeoutError:
            if not limit.expired():
                raise
        raise TimeoutError(f"the attempt took longer than {seconds:g} s")

    return handle
