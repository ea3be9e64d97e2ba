"""The delivery of a task to a handler or to a program that fetches."""

from __future__ import annotations

import inspect
import time
from math import inf
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import orjson

from agentbus.core.envelope import META, trail_of
from agentbus.core.errors import StaleDelivery, UsageError
from agentbus.queues import tracing
from agentbus.queues.durable_steps import DurableSteps
from agentbus.queues.progress import progress_of
from agentbus.queues.results import of_tasks
from agentbus.queues.retry import Retry, pause
from agentbus.queues.task import Task
from agentbus.store.steps import Command
from agentbus.store.verb import Awaiting, Blocking, verb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.store.steps import Op

P = ParamSpec("P")
R = TypeVar("R")


class AnyDelivery:
    """The common part of blocking and asynchronous deliveries."""

    __slots__ = (
        *("_consumer", "_perform", "_steps", "_taken", "acked", "failure", "over_at", "payload"),
        "settled",
    )
    if TYPE_CHECKING:
        # `__getattr__` reads these from the envelope.
        correlation_id: str
        flow: str | None
        traceparent: str | None
        _steps: DurableSteps
        # This is set only after a failure.
        failure: BaseException

    def __init__(
        self, consumer: QueueConsumer, perform: Callable[[Any], Any], taken: Taken
    ) -> None:
        self._consumer = consumer
        self._perform = perform
        self._taken = taken
        self.payload = taken.payload
        self.settled = False
        self.acked = False
        # When the time limit expires, by `time.monotonic`.
        self.over_at = inf

    @property
    def id(self) -> str:
        """The task's id, as `publish` returned it."""
        return self._consumer.id_of(self._taken)

    @property
    def attempt(self) -> int:
        """The attempt number, starting at 1."""
        return self._taken.attempt

    @property
    def queue(self) -> str:
        """The queue of the task."""
        return self._consumer.queue

    @property
    def group(self) -> str:
        """The consumer group of this delivery."""
        return self._consumer.group

    @property
    def priority(self) -> str:
        """The priority: critical, high, normal or low."""
        return self._taken.tier

    @property
    def created_at(self) -> float:
        """Unix time of its publication, by the server's clock (the publisher's, if delayed)."""
        created = self._taken.meta.get("created_at")
        if isinstance(created, (int, float)):
            return created
        return int(self._taken.first_entry.partition(b"-")[0]) / 1000

    @property
    def attempts(self) -> int | None:
        """The task's own maximum number of runs; None if the worker's limit applies."""
        return self._taken.limit(0) or None

    @property
    def time_limit(self) -> float | None:
        """The maximum seconds of this attempt; None if unlimited."""
        return self._taken.time_limit

    @property
    def expires_at(self) -> float | None:
        """The unix time after which the task is no longer run; None if it does not expire."""
        return self._taken.expires_at

    @property
    def expired(self) -> str | None:
        """The reason why the task must not run any more if it has expired; otherwise None."""
        return self._taken.expired(self._consumer.scope.server_now())

    @property
    def cancelled(self) -> bool:
        """True if the handler should end: its task was cancelled, or its time limit has expired.

        It is always false for a program that fetches.
        """
        if self._taken.place in self._consumer.stopping:
            return True
        return self.over_at != inf and time.monotonic() >= self.over_at

    @property
    def task(self) -> Task:
        """The whole envelope, ready to be published again."""
        known: dict[str, Any] = {name: self._taken.meta.get(name) for name in Task.__match_args__}
        known.update(payload=self.payload, priority=self.priority, created_at=self.created_at)
        known["correlation_id"] = self.correlation_id
        return Task(**known)

    @property
    def task_name(self) -> str | None:
        """The name of the typed task, as in `Task.task`; None if the task names none."""
        name = self._taken.meta.get("task")
        return name if isinstance(name, str) else None

    @property
    def trail(self) -> Any:
        """The agents that the task has passed, as recorded by routers, each with the unix time in ms."""
        return trail_of(self._taken.meta, self.payload)

    def __getattr__(self, name: str) -> Any:
        if name in META:
            value = self._taken.meta.get(name)
            return value or self.id if name == "correlation_id" else value
        raise AttributeError(f"a delivery has no {name!r}")

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the task is, from 0 to 1, and a text, for `task show` and the dashboards.

        This call sends nothing; the worker's next heartbeat reports the progress, within a second. At most
        200 characters of `text` are kept. It has no effect in a program that fetches. Raises `UsageError`.
        """
        said = progress_of(fraction, text, self._consumer.scope.server_now())
        self._consumer.progress.note(self._taken, said)

    @property
    def after(self) -> list[str]:
        """The ids of the tasks that it waited for, in the given order."""
        ids = self._taken.meta.get("after")
        return [name for name in ids if isinstance(name, str)] if isinstance(ids, list) else []

    @verb
    def results(self) -> Op[list[Any]]:
        """Return the results of the tasks that it waited for, in the order of `after`.

        A result is None if the handler returned nothing, or if the result has expired. Raises
        `StaleDelivery` if one is missing because the server has lost its latest writes.
        """
        consumer, task, group = self._consumer, self._taken, self._taken.meta.get("after_group")
        found = yield from of_tasks(
            consumer.scope, self.after, group if isinstance(group, str) else "default"
        )
        if None in found and not self.settled:
            stream, entry = consumer.streams[task.priority], task.entry_id
            held = yield Command("XPENDING", stream, consumer.group, entry, entry, 1)
            if not held:
                raise StaleDelivery(
                    f"the task {self.id} was not handed the results of others: its delivery is not known"
                    " to the server, which may have lost its latest writes",
                    hint="the task runs again once the tasks that it waits for are done",
                )
        return found

    @verb
    def ack(self, result: object = None) -> Op[bool]:
        """Acknowledge the task, and keep a result; return whether this consumer still held it."""
        self.settled = True
        self.acked = yield from self._consumer.finish(self._taken, 0.0, result)
        return self.acked

    @verb
    def retry(self, after: float = 0.0) -> Op[bool]:
        """Retry the task after `after` seconds; return whether this consumer still held it."""
        op = self._consumer.retry(self._taken, pause(after))
        self.settled = True
        return (yield from op)

    @verb
    def snooze(self, after: float) -> Op[bool]:
        """Run the task again after `after` seconds, without counting this attempt.

        Returns whether this consumer still held it.
        """
        op = self._consumer.snooze(self._taken, pause(after))
        self.settled = True
        return (yield from op)

    def fail(self, error: BaseException | str) -> None:
        """Let this attempt fail, as if the handler had raised the error for this task alone.

        This is for a handler of a list of tasks of which some fail: when it ends, its worker retries these
        tasks or moves them to the dead letters. It has no effect in a program that fetches.
        """
        self.settled = True
        self.failure = error if isinstance(error, BaseException) else Retry(error)

    @verb
    def bury(self, error: BaseException | str) -> Op[bool]:
        """Move the task to the dead letters; return whether this consumer still held it."""
        self.settled = True
        return (yield from self._consumer.bury(self._taken, error))

    def _durable(self) -> DurableSteps:
        """Return the steps of this attempt."""
        try:
            return self._steps
        except AttributeError:
            self._steps = DurableSteps(self._consumer, self._taken)
            return self._steps

    def _run(self, _name: str, op: Op[bool]) -> Any:
        return self._perform(op)


class Delivery(AnyDelivery, Blocking):
    """A task that a consumer holds: its payload, and the methods that settle it.

    `ack`, `retry`, `snooze` and `bury` have no effect on a task that another consumer has reclaimed. The
    fields of the envelope are attributes: `correlation_id` (by default the task's id), `reply_to`,
    `headers` and so on, as in `Task`; None if not set. `expires_at` is the unix time after which no attempt
    begins. Once it is `cancelled`, a long handler should end: if it ends with an error, its task counts as
    cancelled, or as failed if the time limit had expired; otherwise as done.
    """

    __slots__ = ()

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function once, as a step of the task: later attempts get the recorded result.

        `name` identifies the step within the task. The result is returned as decoded from JSON. It is
        recorded in one atomic step, if this consumer still holds the task; if its worker dies before that,
        the function is called again. Results are kept until the task ends, or 30 days after the last
        attempt. Raises what the function raises, `InvalidPayload` for a result that is not JSON,
        `StaleDelivery`, and `UsageError` for two steps with the same name.
        """
        done = self._perform(self._durable().begin(name))
        if done is None:
            with tracing.in_step(name):
                result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result.close()
                raise UsageError(
                    f"the function of the step {name!r} is a coroutine function",
                    hint="make the handler one, too, and await delivery.step(...)",
                )
            done = self._perform(self._durable().end(name, result))
        value: R = orjson.loads(done)
        return value


class AsyncDelivery(AnyDelivery, Awaiting):
    """A delivery in a coroutine: like `Delivery`, but the methods that settle it are awaited."""

    __slots__ = ()

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function, or await a coroutine function, like `Delivery.step`."""
        done = await self._perform(self._durable().begin(name))
        if done is None:
            with tracing.in_step(name):
                result = function(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = await result
            done = await self._perform(self._durable().end(name, result))
        return orjson.loads(done)
