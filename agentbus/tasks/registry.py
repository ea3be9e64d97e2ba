"""The registry of typed tasks, and of the dependencies that their workers provide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.store.verb import Awaiting
from agentbus.tasks.dependencies import OWN, Provided
from agentbus.tasks.options import TaskOptions
from agentbus.tasks.typed_task import AnyTask, TypedTask
from agentbus.tasks.worker import AsyncTaskWorker, TaskWorker

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
    )
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import TypedDict, Unpack

    from agentbus.client.aio import AsyncBus
    from agentbus.client.bus import Bus
    from agentbus.queues.limits import QueueLimit
    from agentbus.queues.retry import Backoff
    from agentbus.tasks.worker import WorkOptions

    class Declared(TypedDict, total=False):
        """The options of `Tasks.task` other than `queue` and `given`."""

        name: str | None
        attempts: int | None
        priority: str | None
        expires: float | None
        timeout: float | None
        backoff: Backoff | None
        every: float | None
        cron: str | None
        timezone: str | None
        missed: str | None
        unique: str | None
        limit: QueueLimit | None


P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
D = TypeVar("D")


class _Declaring(Protocol):
    """Turns a function into a typed task."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TypedTask[P, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TypedTask[P, P, R, R]: ...


class _Given1(Protocol[A]):
    """Turns a function into a typed task whose first parameter the worker provides."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], /
    ) -> TypedTask[Concatenate[A, P], P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, P], R], /
    ) -> TypedTask[Concatenate[A, P], P, R, R]: ...


class _Given2(Protocol[A, B]):
    """Turns a function into a typed task whose first two parameters the worker provides."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, P], Coroutine[Any, Any, R]], /
    ) -> TypedTask[Concatenate[A, B, P], P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, P], R], /
    ) -> TypedTask[Concatenate[A, B, P], P, R, R]: ...


class _Given3(Protocol[A, B, D]):
    """Turns a function into a typed task whose first three parameters the worker provides."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, D, P], Coroutine[Any, Any, R]], /
    ) -> TypedTask[Concatenate[A, B, D, P], P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, D, P], R], /
    ) -> TypedTask[Concatenate[A, B, D, P], P, R, R]: ...


class Tasks:
    """A registry of typed tasks: functions whose calls are published to queues and run by workers.

    It needs no connection. `@tasks.task(queue="mail")` declares a task, `send.publish(bus, mail)` publishes
    a call of it, and `tasks.worker(bus).run()`, or `agentbus work app:tasks`, runs the published calls.
    """

    def __init__(self) -> None:
        self._own: dict[tuple[str, str], AnyTask] = {}
        self._provided: dict[type[Any], Provided] = {}
        self._included: list[Tasks] = []

    @overload
    def task(self, *, queue: str, **options: Unpack[Declared]) -> _Declaring: ...
    @overload
    def task(
        self, *, queue: str, given: type[A] | tuple[type[A]], **options: Unpack[Declared]
    ) -> _Given1[A]: ...
    @overload
    def task(
        self, *, queue: str, given: tuple[type[A], type[B]], **options: Unpack[Declared]
    ) -> _Given2[A, B]: ...
    @overload
    def task(
        self, *, queue: str, given: tuple[type[A], type[B], type[D]], **options: Unpack[Declared]
    ) -> _Given3[A, B, D]: ...
    def task(
        self,
        *,
        queue: str,
        given: type[Any] | tuple[type[Any], ...] = (),
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Declare a function, or a coroutine function, as a task of a queue; for use as a decorator.

        Its parameters are the payload: a single dataclass, `msgspec.Struct`, pydantic model or TypedDict is
        itself the payload, while other parameters form an object by name. `given` are the types of its
        first parameters, which are not part of the payload and which the worker provides: `Bus` or
        `AsyncBus`, `Delivery` or `AsyncDelivery`, or types registered with `provide`. `name` (by default
        the function's name) is stored with each task and must not change while tasks are queued.
        `attempts`, `priority`, `expires` and `backoff` take precedence over the queue's policy. An attempt
        that takes longer than `timeout` seconds fails: a coroutine is cancelled, and a function in a thread
        finds its delivery `cancelled`. With `unique="until_done"`, a call is not published again until an
        earlier one with the same arguments has ended; `options(key=...)` sets a different key. `limit` is
        set for the queue when a worker starts, as by `Limits.set`.

        With `every` (in seconds) or `cron`, a worker of the task also publishes it on schedule, without
        arguments; `timezone` and `missed` are like those of `Schedules.add`. Raises `UsageError`.
        """
        kinds = given if isinstance(given, tuple) else (given,)
        try:
            declared = TaskOptions(queue=queue, **options)
        except TypeError:
            known = {*TaskOptions.__dataclass_fields__}
            wrong = ", ".join(sorted(repr(option) for option in {*options} - known))
            raise UsageError(
                f"a typed task has no option {wrong}", hint=f"use {', '.join(sorted(known))}"
            ) from None

        def declare(function: Callable[..., Any]) -> AnyTask:
            named = names.name("task", name or getattr(function, "__name__", ""))
            place = (queue, named)
            if place in self._own:
                raise UsageError(
                    f"there are two tasks {named!r} of the queue {queue!r}",
                    hint="give one of them another name=",
                )
            typed_task: AnyTask = TypedTask(function, named, declared, kinds)
            self._own[place] = typed_task
            return typed_task

        return declare

    def schemas(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the JSON Schemas of the payloads, by queue and task."""
        return {place: task.payload.schema() for place, task in self._own.items()}

    @overload
    def provide(
        self,
        kind: type[A],
        source: A
        | Callable[
            [],
            A
            | Awaitable[A]
            | Iterator[A]
            | AsyncIterator[A]
            | AbstractContextManager[A]
            | AbstractAsyncContextManager[A],
        ],
        *,
        per: str = "worker",
    ) -> None: ...
    @overload
    def provide(self, kind: type[Any], source: Any, *, per: str = "worker") -> None: ...
    def provide(self, kind: type[Any], source: Any, *, per: str = "worker") -> None:
        """Provide a dependency of tasks by its type: a value, or a function that makes it.

        The function may also be a generator function with one `yield`, or return a context manager, which
        is entered before the value is used and left afterwards. Coroutine functions and asynchronous
        context managers are only for tasks that are coroutine functions. With `per="worker"`, the tasks of
        a worker share a value, made for the first of them and closed when the worker ends; with
        `per="task"`, each task gets its own value, closed when the task has ended, with its error if it
        failed. A second call for a type replaces the first. Raises `UsageError`.
        """
        if kind in OWN:
            raise UsageError(f"{kind.__name__} is given by the worker", hint="do not provide it")
        if per not in ("task", "worker"):
            raise UsageError(f"per is {per!r}", hint="give 'task' or 'worker'")
        self._provided[kind] = Provided(kind, source, per)

    def include(self, *others: Tasks) -> None:
        """Add the tasks and dependencies of other registries, including those that they declare later.

        Dependencies that this registry provides replace theirs. Raises `UsageError` for a registry that
        includes this one.
        """
        for other in others:
            if self is other or self in other._all():
                raise UsageError("a registry cannot include itself", hint="include it once")
            self._included.append(other)

    def all(self) -> list[AnyTask]:
        """Return the tasks of this registry and of included registries.

        Raises `UsageError` if two tasks of a queue have the same name.
        """
        tasks: dict[tuple[str, str], AnyTask] = {}
        for registry in self._all():
            for place, task in registry._own.items():
                if tasks.setdefault(place, task) is not task:
                    raise UsageError(
                        f"there are two tasks {place[1]!r} of the queue {place[0]!r}",
                        hint="give one of them another name=",
                    )
        return [*tasks.values()]

    def provided(self) -> dict[type[Any], Provided]:
        """Return the provided dependencies, by type."""
        provided: dict[type[Any], Provided] = {}
        for registry in reversed(self._all()):
            provided |= registry._provided
        return provided

    @overload
    def worker(
        self, bus: Bus, *, queues: Iterable[str] | None = None, **options: Unpack[WorkOptions]
    ) -> TaskWorker: ...
    @overload
    def worker(
        self, bus: AsyncBus, *, queues: Iterable[str] | None = None, **options: Unpack[WorkOptions]
    ) -> AsyncTaskWorker: ...
    def worker(self, bus: Any, *, queues: Iterable[str] | None = None, **options: Any) -> Any:
        """Return a worker for all tasks, or for the tasks of some queues.

        Functions run in threads, coroutines in an event loop, up to `concurrency` at once for each queue.
        `group`, `concurrency`, `visibility`, `drain`, `drain_timeout` and `start` are like those of
        `Worker`. Without `drain`, it adds the schedules of all tasks, including those of other queues, and
        runs a scheduler. Schedules that the program `owner` declared before, but no longer declares, are
        removed. `middleware` gets the handler of each queue and returns its middleware. Raises
        `UsageError` if nothing provides a dependency of a task, and `InvalidPayload` if a task with a
        schedule requires arguments.
        """
        kind: Any = AsyncTaskWorker if isinstance(bus, Awaiting) else TaskWorker
        return kind(bus, self.all(), self.provided(), queues, **options)

    def _all(self) -> list[Tasks]:
        registries: list[Tasks] = [self]
        for other in self._included:
            registries += [registry for registry in other._all() if registry not in registries]
        return registries
