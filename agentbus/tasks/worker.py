"""Workers of typed tasks: one for each queue, all run together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict

from agentbus.client.aio import AsyncBus
from agentbus.core.errors import UsageError
from agentbus.core.signals import stopped_by_signals
from agentbus.queues.delivery import Delivery
from agentbus.tasks.declared_schedules import ascheduled, definitions, scheduled
from agentbus.tasks.dependencies import Surroundings, check
from agentbus.tasks.limits import Limits
from agentbus.tasks.payloads import PayloadMismatch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from agentbus.client.bus import Bus
    from agentbus.queues.limits import QueueLimit
    from agentbus.queues.policy import Policies
    from agentbus.tasks.dependencies import Provided
    from agentbus.tasks.typed_task import AnyTask
    from agentbus.workers.async_worker import AsyncWorker
    from agentbus.workers.middleware import Middleware
    from agentbus.workers.worker import Worker

    class WorkOptions(TypedDict, total=False):
        """The keyword arguments of `Tasks.worker`."""

        group: str
        concurrency: int
        visibility: float | None
        drain: bool
        drain_timeout: float | None
        start: str
        owner: str | None
        middleware: Callable[[Callable[[Any], Any]], Sequence[Middleware]]


class _OfQueue:
    """The tasks of one queue, by name, and a handler that runs the task for a delivery."""

    def __init__(self, queue: str, tasks: list[AnyTask]) -> None:
        self.queue = queue
        self._tasks = {task.name: task for task in tasks}
        self._only = tasks[0] if len(tasks) == 1 else None
        self.awaits = any(task.is_coroutine for task in tasks)
        for task in tasks:
            # Find types that cannot be read or checked before a task is taken.
            _ = task.payload, task.returns
        backoffs = {task.name: task.declared.backoff for task in tasks}
        limits = [task.declared.attempts for task in tasks]
        known = [limit for limit in limits if limit is not None]
        self.options = {
            # A typed task carries its limit in the envelope; this one applies to tasks of other
            # programs.
            "attempts": max(known) if len(known) == len(limits) else None,
            "backoff": {name: backoff for name, backoff in backoffs.items() if backoff is not None},
        }

    def of(self, delivery: Any) -> AnyTask:
        """Return the task of a delivery. Raises `PayloadMismatch`."""
        name = delivery.task_name
        if name is None and self._only is not None:
            return self._only
        task = None if name is None else self._tasks.get(name)
        if task is None:
            what = "names no task" if name is None else f"is for the unknown task {name!r}"
            known = ", ".join(sorted(map(repr, self._tasks)))
            raise PayloadMismatch(f"the entry {what}; the queue {self.queue!r} has {known}")
        return task

    def handler(self, around: Surroundings) -> Callable[[Any], Any]:
        """Return the function that handles the deliveries of the queue."""
        return self._awaited(around) if self.awaits else self._called(around)

    def _called(self, around: Surroundings) -> Callable[[Any], Any]:
        of, direct = self.of, {name: _direct(task) for name, task in self._tasks.items()}
        only = None if self._only is None else _direct(self._only)

        def handle(delivery: Any) -> Any:
            name = delivery.task_name
            call = only if name is None else direct.get(name)
            if call is not None:
                return call(delivery.payload)
            return _run(of(delivery), delivery, around)

        return handle

    def _awaited(self, around: Surroundings) -> Callable[[Any], Any]:
        async def handle(delivery: Any) -> Any:
            task = self.of(delivery)
            if not task.is_coroutine:
                return await _in_thread(_run, task, delivery, around)
            arguments = task.payload.decode(delivery.payload)
            if not task.given:
                return task.returns.encode(await task.function(**arguments))
            async with AsyncExitStack() as stack:
                given = await around.agive(task, delivery, stack)
                return task.returns.encode(await task.function(*given, **arguments))

        return handle


async def _in_thread(run: Callable[..., Any], *arguments: object) -> Any:
    """Run a function in a thread; if cancelled, wait for its end, because a thread cannot be stopped.

    The delivery shows that the function should end. Its return value or exception is the outcome.
    """
    running = asyncio.ensure_future(asyncio.to_thread(run, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        return running.result()


def _direct(task: AnyTask) -> Callable[[Any], Any] | None:
    """Return a function that calls a task with a payload; None if the task has other dependencies."""
    if task.given:
        return None
    function, arguments, encode = task.function, task.payload.call, task.returns.encode

    def call(payload: Any) -> Any:
        result = arguments(function, payload)
        return None if result is None else encode(result)

    return call


def _run(task: AnyTask, delivery: Any, around: Surroundings) -> Any:
    arguments = task.payload.decode(delivery.payload)
    if not task.given:
        return task.returns.encode(task.function(**arguments))
    with ExitStack() as stack:
        given = around.give(task, delivery, stack)
        return task.returns.encode(task.function(*given, **arguments))


class _AnyTaskWorker:
    """The common part of `TaskWorker` and `AsyncTaskWorker`."""

    def __init__(
        self,
        bus: Any,
        tasks: Iterable[AnyTask],
        provided: Mapping[type[Any], Provided],
        queues: Iterable[str] | None,
        *,
        owner: str | None = None,
        middleware: Callable[[Callable[[Any], Any]], Sequence[Middleware]] | None = None,
        **options: Any,
    ) -> None:
        tasks = [*tasks]
        self._owner = None if options.get("drain") else owner
        # A drain publishes no ticks: it ends with the tasks that exist.
        self._schedules = [] if options.get("drain") else definitions(tasks)
        self._bus = bus
        self._middleware = middleware
        self._options = options
        self._provided = provided
        wanted = None if queues is None else [*queues]
        by_queue: dict[str, list[AnyTask]] = {}
        for task in tasks:
            by_queue.setdefault(task.queue, []).append(task)
        for queue in wanted or ():
            if queue not in by_queue:
                known = ", ".join(sorted(map(repr, by_queue))) or "none"
                raise UsageError(
                    f"no task is declared for the queue {queue!r}",
                    hint=f"the queues of the tasks are {known}",
                )
        chosen = [queue for queue in by_queue if wanted is None or queue in wanted]
        if not chosen:
            raise UsageError("there are no tasks", hint="declare one: @tasks.task(queue='mail')")
        for queue in chosen:
            for task in by_queue[queue]:
                check(task, self._provided)
                _check_mixed(task, by_queue[queue])
        self.queues = chosen
        self._limits = declared_limits(tasks, bus.runner.policies, chosen)
        self._of = [_OfQueue(queue, by_queue[queue]) for queue in chosen]
        self._workers: list[Worker | AsyncWorker] = []
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def done(self) -> int:
        """The number of tasks that were done and acknowledged."""
        return sum(worker.done for worker in self._workers)

    @property
    def failed(self) -> int:
        """The number of failed runs; their tasks are retried or dead."""
        return sum(worker.failed for worker in self._workers)

    @property
    def buried(self) -> dict[str, int]:
        """The number of tasks of each queue that became dead during a drain."""
        return {worker.queue: worker.buried for worker in self._workers}

    def stop(self) -> None:
        """Stop after the running tasks are finished and acknowledged.

        Idempotent; any thread and a signal handler may call it.
        """
        self._stopped = True
        for worker in [*self._workers]:
            worker.stop()

    def _subscribed(self, bus: Any, of: _OfQueue, around: Surroundings) -> Any:
        handler, options = of.handler(around), {**of.options, **self._options}
        if self._middleware is not None:
            options["middleware"] = self._middleware(handler)
        worker = bus.subscribe(of.queue, handler, **options)
        self._workers.append(worker)
        if self._stopped:
            worker.stop()
        return worker

    async def _run_in_loop(
        self, bus: AsyncBus, which: list[_OfQueue], blocking: Bus | None
    ) -> None:
        around = Surroundings(self._provided, blocking, bus)
        try:
            runs = [asyncio.ensure_future(self._subscribed(bus, of, around).run()) for of in which]
            try:
                await asyncio.wait(runs, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                # A failed or cancelled run ends all others.
                if any(not run.done() for run in runs):
                    self.stop()
                await asyncio.gather(*runs, return_exceptions=True)
            for run in runs:
                run.result()
        finally:
            await around.aclose()


class TaskWorker(_AnyTaskWorker):
    """Runs typed tasks on a `Bus`; `Tasks.worker` returns it.

    Functions run in the threads of one worker per queue, coroutine functions in an event loop that all
    their queues share. In a queue with tasks of both kinds, functions run in threads of that loop.
    """

    def run(self) -> int:
        """Run until stopped (with `drain`, until nothing is left), and return the number of tasks done.

        In the main thread, SIGTERM and SIGINT stop it like `stop`, unless the program handles them. Raises
        the errors of `Worker.run`; an error of one queue's worker stops all of them.
        """
        with stopped_by_signals(self.stop), self._scheduled():
            for queue, limit in self._limits.items():
                Limits(self._bus.at(queue)).apply({queue: limit})
            self._run_all()
        return self.done

    def _scheduled(self) -> AbstractContextManager[None]:
        if not self._schedules and self._owner is None:
            return nullcontext()
        return scheduled(self._bus, self._schedules, self._owner)

    def _run_all(self) -> None:
        around = Surroundings(self._provided, self._bus, None)
        awaited = [of for of in self._of if of.awaits]
        runs: list[Callable[[], Any]] = [
            self._subscribed(self._bus, of, around).run for of in self._of if not of.awaits
        ]
        if awaited:
            runs.append(lambda: asyncio.run(self._in_own_loop(awaited)))
        failures: list[BaseException] = []

        def run(one: Callable[[], Any]) -> None:
            try:
                one()
            except BaseException as error:  # noqa: BLE001 (it is raised below)
                failures.append(error)
                self.stop()

        # Another event loop cannot run in a thread that runs one, as in a notebook.
        here = [] if asyncio._get_running_loop() is not None else runs[:1]
        threads = [
            threading.Thread(target=run, args=(one,), name="agentbus-tasks")
            for one in runs[len(here) :]
        ]
        try:
            for thread in threads:
                thread.start()
            for one in here:
                run(one)
            for thread in threads:
                thread.join()
        finally:
            self.stop()
            around.close()
        if failures:
            raise failures[0]

    async def _in_own_loop(self, which: list[_OfQueue]) -> None:
        async with AsyncBus(self._bus.settings) as bus:
            bus.scope.now = self._bus.scope.now
            bus.scope.monotonic = self._bus.scope.monotonic
            await self._run_in_loop(bus, which, self._bus)


class AsyncTaskWorker(_AnyTaskWorker):
    """Runs typed tasks on an `AsyncBus`; `Tasks.worker` returns it.

    Coroutine functions run in the caller's event loop, functions in threads.
    """

    async def run(self) -> int:
        """Run until stopped (with `drain`, until nothing is left), and return the number of tasks done.

        If cancelled, it stops as by `stop`, and ends after the running tasks.
        """
        with stopped_by_signals(self.stop):
            for queue, limit in self._limits.items():
                await Limits(self._bus.at(queue)).apply({queue: limit})
            if not self._schedules and self._owner is None:
                await self._run_in_loop(self._bus, self._of, None)
            else:
                async with ascheduled(self._bus, self._schedules, self._owner):
                    await self._run_in_loop(self._bus, self._of, None)
        return self.done


def declared_limits(
    tasks: Iterable[AnyTask], policies: Policies, queues: Collection[str] | None = None
) -> dict[str, QueueLimit]:
    """Return the limits of queues that tasks and the settings declare; those of the settings come first.

    Raises `UsageError` if tasks of one queue declare different limits.
    """
    declared: dict[str, QueueLimit] = {}
    for task in tasks:
        limit = task.declared.limit
        if limit is not None and declared.setdefault(task.queue, limit) != limit:
            raise UsageError(
                f"tasks of the queue {task.queue!r} declare different limits",
                hint="a limit is that of the queue: declare it once, or give a task another queue",
            )
    declared |= policies.limits()
    return {queue: declared[queue] for queue in declared if queues is None or queue in queues}


def _check_mixed(task: AnyTask, others: list[AnyTask]) -> None:
    """Refuse a function that needs its delivery beside coroutines, whose deliveries are awaited."""
    if Delivery in task.given and any(other.is_coroutine for other in others):
        raise UsageError(
            f"the task {task.name!r} asks for Delivery in a queue with coroutine functions",
            hint="give it another queue, or make it a coroutine function",
        )
