"""Drains a queue in a test: runs a worker through delays and retries, and returns the outcomes."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.errors import UsageError
from agentbus.core.readable import count
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.ids import STREAMS
from agentbus.store.steps import Batch
from agentbus.testing.clock import FakeClock
from agentbus.testing.journal import Journal
from agentbus.testing.memory import blocking
from agentbus.workers.executors import is_async
from agentbus.workers.middleware import around

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from agentbus.client.bus import Bus, Verbs
    from agentbus.queues.dead_letters import Letter
    from agentbus.store.steps import Op

_MOST = 10_000
_ALL = 1_000_000
# Seconds after which a worker looks again for another worker's retries.
_GLANCE = 1.0


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcomes of the tasks that a drain ran.

    `done` has the payloads of done tasks, in the order of their completion; `results` maps task ids
    to stored results, `runs` to numbers of runs; `dead` has the dead letters.
    """

    done: list[Any]
    results: dict[str, Any]
    runs: dict[str, int]
    dead: list[Letter]


class Buried(AssertionError):
    """A task became a dead letter in a drain; the cause is the handler's last error.

    `drained` is the result of the drain.
    """

    def __init__(self, message: str, drained: Drained) -> None:
        super().__init__(message)
        self.drained = drained


def drain(
    bus: Verbs,
    queue: str,
    handler: Callable[..., Any],
    *,
    group: str = "default",
    due_only: bool = False,
    raises: bool = True,
    most: int = _MOST,
    **options: Any,
) -> Drained:
    """Run a worker until the queue is empty for the group, and return the outcomes of its tasks.

    Waits for delayed tasks and retries, unless `due_only`: a fake clock is advanced, the machine's
    time passes. It does not wait for tasks of other consumers. `options` are those of
    `Bus.subscribe`. Raises `Buried` if a task was buried, unless `raises` is false, and
    `AssertionError` after more than `most` runs, as by a handler that publishes to its own queue.
    """
    __tracebackhide__ = True
    handler = around(handler, options.pop("middleware", ()))
    if is_async(handler) and _inside_a_loop():
        raise UsageError(
            "an asynchronous handler cannot run here: this thread's event loop is running",
            hint="use 'await adrain(…)'",
        )
    with blocking(bus) as opened:
        work = _Drain(opened, queue, handler, group, most, options)
        return work.checked(raises, work.run(due_only))


async def adrain(
    bus: Verbs,
    queue: str,
    handler: Callable[..., Any],
    *,
    group: str = "default",
    due_only: bool = False,
    raises: bool = True,
    most: int = _MOST,
    **options: Any,
) -> Drained:
    """Run a worker as `drain` does, in a thread; an asynchronous handler runs in the caller's event loop.

    The handler may therefore use objects that the test created in that loop.
    """
    __tracebackhide__ = True
    handler = around(handler, options.pop("middleware", ()))
    loop = asyncio.get_running_loop()
    running: set[Future[Any]] = set()

    async def finish(result: Any) -> Any:
        return await result

    def here(given: Any) -> Any:
        result = handler(given)
        if not inspect.isawaitable(result):
            return result
        future = asyncio.run_coroutine_threadsafe(finish(result), loop)
        running.add(future)
        if work.stopped:
            # The drain was stopped before this future was added.
            future.cancel()
        try:
            return future.result()
        finally:
            running.discard(future)

    with blocking(bus) as opened:
        work = _Drain(opened, queue, functools.wraps(handler)(here), group, most, options)
        thread = asyncio.ensure_future(asyncio.to_thread(work.run, due_only))
        try:
            return work.checked(raises, await asyncio.shield(thread))
        except asyncio.CancelledError:
            # The thread must not outlive the loop that its handlers need.
            work.stop()
            for future in list(running):
                future.cancel()
            await asyncio.wait([thread])
            raise


class _Drain:
    """One drain of a queue."""

    def __init__(
        self,
        bus: Bus,
        queue: str,
        handler: Callable[..., Any],
        group: str,
        most: int,
        options: dict[str, Any],
    ) -> None:
        self._bus = bus
        self._queue = bus.queue(queue)
        self._look = QueueConsumer(bus.scope, queue, group, "-")
        self._clock = FakeClock.of(bus.scope.now)
        self._most = most
        self._journal = Journal()
        self.stopped = False
        self._before = {letter.id for letter in self._letters()}
        self._results: dict[str, Any] = {}
        self._collected: dict[str, int] = {}
        self._worker = bus.subscribe(
            queue, self._journal.keep(handler), group=group, drain=True, **options
        )

    def stop(self) -> None:
        """Stop after the running tasks."""
        self.stopped = True
        self._worker.stop()

    def run(self, due_only: bool) -> Drained:
        """Run the worker repeatedly until the queue is empty, or no task is due."""
        wait = 0.0
        with self._worker as worker:
            while not self.stopped:
                handled = worker.run_once(wait=wait)
                wait = 0.0
                self._collect()
                self._bounded()
                if handled:
                    continue
                due = self._bus._run("drain", _soonest(self._look))
                now = self._bus.scope.now()
                if due is None or (due_only and due > now):
                    break
                if self._clock is None or due_only:
                    wait = max(0.001, min(_GLANCE, due - now))
                else:
                    self._clock.advance(due - now if due > now else _GLANCE)
        dead = [letter for letter in self._letters() if letter.id not in self._before]
        buried = {letter.task_id for letter in dead}
        done = [task for task in self._journal.done if task not in buried]
        payloads = self._journal.done
        return Drained(
            done=[payloads[task] for task in done],
            results={task: self._results[task] for task in done if task in self._results},
            runs=dict(self._journal.runs),
            dead=dead,
        )

    def checked(self, raises: bool, drained: Drained) -> Drained:
        """Return the outcomes of the tasks, or raise `Buried`."""
        # Hide this frame, so that a test's report ends in the test's own line.
        __tracebackhide__ = True
        if not raises or not drained.dead:
            return drained
        lines = [
            f"{letter.task_id} after {count(letter.attempts, 'attempt')}: {letter.error}"
            for letter in drained.dead
        ]
        name = self._queue.name
        what = (
            f"1 task of {name!r} was" if len(lines) == 1 else f"{len(lines)} tasks of {name!r} were"
        )
        message = "\n  ".join([f"{what} buried:", *lines])
        errors = (self._journal.errors.get(str(letter.task_id)) for letter in drained.dead)
        raise Buried(message, drained) from next((error for error in errors if error), None)

    def _letters(self) -> list[Letter]:
        found: list[Letter] = self._queue.dead_letters(self._look.group, limit=_ALL)
        return found

    def _collect(self) -> None:
        """Read the results of done tasks, before the clock passes their expiry."""
        runs = self._journal.runs
        fresh = [task for task in self._journal.done if self._collected.get(task) != runs[task]]
        if fresh:
            # A task may have been done again in a later run.
            self._collected.update({task: runs[task] for task in fresh})
            self._results.update(self._bus._run("drain", _results(self._look, fresh)))

    def _bounded(self) -> None:
        runs = sum(self._journal.runs.values())
        if runs > self._most:
            raise AssertionError(
                f"{count(runs, 'run')}, and the queue {self._queue.name!r} is not empty: does its handler"
                " publish to it?"
            )


def _soonest(look: QueueConsumer) -> Op[float | None]:
    keys = look.scope.keys
    waiting = (keys.delayed(look.queue), *(look.retries(priority) for priority in STREAMS))
    replies = yield Batch([("ZRANGE", key, 0, 0, "WITHSCORES") for key in waiting])
    return min((float(reply[1]) / 1000 for reply in replies if reply), default=None)


def _results(look: QueueConsumer, tasks: list[str]) -> Op[dict[str, Any]]:
    replies = yield Batch([("GET", look.scope.keys.result(task, look.group)) for task in tasks])
    kept = zip(tasks, replies, strict=True)
    # The key of a dead task holds its error; that of a task without a result may hold null.
    found = {
        task: orjson.loads(reply)
        for task, reply in kept
        if isinstance(reply, bytes) and reply[:1] != b"!"
    }
    return {task: result for task, result in found.items() if result is not None}


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
