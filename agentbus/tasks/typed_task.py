"""A typed task: a function whose calls can be published and run by a worker."""

from __future__ import annotations

import functools
import hashlib
import inspect
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, overload
from weakref import WeakKeyDictionary

from agentbus.core.errors import UsageError
from agentbus.queues.task import Task
from agentbus.store.verb import Awaiting
from agentbus.tasks.handle import AsyncHandle, Handle
from agentbus.tasks.payloads import Payload, TypedResult, as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Unpack

    from agentbus.client.aio import AsyncBus
    from agentbus.client.bus import Bus
    from agentbus.core.envelope import Envelope
    from agentbus.tasks.options import TaskOptions

C = ParamSpec("C")
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class TypedTask(Generic[C, P, T, R]):
    """A function registered by `Tasks.task`.

    A call of this object calls the function. `publish` sends a call to a worker: its arguments are the
    function's, except those that the worker provides. The type parameters are the parameters of a call, the
    parameters of `publish`, the return value of a call, and the result.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: TaskOptions,
        given: tuple[type[Any], ...],
        envelope: dict[str, Any] | None = None,
        when: dict[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.declared = options
        self.given = given
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._envelope = {**options.envelope(), "task": name} if envelope is None else envelope
        self._when = when or {}
        self._queues: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> T:
        returned: T = self.function(*args, **kwargs)
        return returned

    def __repr__(self) -> str:
        return f"<task {self.name!r} of the queue {self.queue!r}>"

    @property
    def queue(self) -> str:
        """The queue of the task."""
        return self.declared.queue

    # Evaluate on first use: the types may be defined after the function.
    @functools.cached_property
    def payload(self) -> Payload:
        """The converter of the task's arguments."""
        return Payload(self.name, self.function, len(self.given))

    @functools.cached_property
    def returns(self) -> TypedResult:
        """The converter of the task's result."""
        return TypedResult(self.name, self.function)

    def options(
        self,
        *,
        delay: float | None = None,
        at: float | None = None,
        after: str | Iterable[str] | None = None,
        after_group: str | None = None,
        on_full: str | None = None,
        **envelope: Unpack[Envelope],
    ) -> TypedTask[C, P, T, R]:
        """Return the same task with these options of `Queue.publish`.

        `send.options(delay=60, key="a").publish(bus, mail)` publishes one call; the task itself is
        unchanged.
        """
        if "task" in envelope:
            raise UsageError("the name of a typed task cannot be changed", hint="leave it out")
        own = {"delay": delay, "at": at, "after": after}
        own |= {"after_group": after_group, "on_full": on_full}
        when = {name: value for name, value in own.items() if value is not None}
        return TypedTask(
            self.function,
            self.name,
            self.declared,
            self.given,
            {**self._envelope, **envelope},
            {**self._when, **when},
        )

    @overload
    def publish(self, bus: Bus, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    def publish(
        self, bus: AsyncBus, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, AsyncHandle[R]]: ...
    def publish(self, bus: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Publish a call, and return its handle; on an `AsyncBus`, it is awaited.

        Raises `InvalidPayload` with the path of an argument that does not fit, and the errors of
        `Queue.publish`.
        """
        if isinstance(bus, Awaiting):
            return self._apublish(bus, args, kwargs)
        item = enveloped(self._encode(args, kwargs), self._envelope)
        return Handle(bus, self._on(bus).publish(item, **self._when), self.returns)

    async def _apublish(
        self, bus: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncHandle[R]:
        item = enveloped(self._encode(args, kwargs), self._envelope)
        return AsyncHandle(bus, await self._on(bus).publish(item, **self._when), self.returns)

    def item(self, *args: P.args, **kwargs: P.kwargs) -> Item[R]:
        """Return a call for `publish_many`. Raises `InvalidPayload`."""
        self._batch()
        return Item(self, self._encode(args, kwargs), self._envelope)

    @overload
    def publish_many(self, bus: Bus, items: Iterable[Item[R]], /) -> list[Handle[R]]: ...
    @overload
    def publish_many(
        self, bus: AsyncBus, items: Iterable[Item[R]], /
    ) -> Coroutine[Any, Any, list[AsyncHandle[R]]]: ...
    def publish_many(self, bus: Any, items: Iterable[Any], /) -> Any:
        """Publish calls made by `item` in batches, and return their handles in order.

        Batches and errors are like those of `Queue.publish_many`. The options `delay`, `at` and `after` do
        not apply to batches, and raise `UsageError`.
        """
        if isinstance(bus, Awaiting):
            return self._apublish_many(bus, items)
        ids = self._on(bus).publish_many(self._checked(items), **self._batch())
        return [Handle(bus, one, self.returns) for one in ids]

    async def _apublish_many(self, bus: Any, items: Iterable[Any]) -> list[AsyncHandle[R]]:
        ids = await self._on(bus).publish_many(self._checked(items), **self._batch())
        return [AsyncHandle(bus, task_id, self.returns) for task_id in ids]

    @overload
    def handle(self, bus: Bus, task_id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, bus: AsyncBus, task_id: str, /) -> AsyncHandle[R]: ...
    def handle(self, bus: Any, task_id: str, /) -> Any:
        """Return the handle of a call published earlier, by its id."""
        kind: Any = AsyncHandle if isinstance(bus, Awaiting) else Handle
        return kind(bus, task_id, self.returns)

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # The key of a unique task is derived from its payload.
        unique = self._envelope.get("unique") is not None
        return self.payload.encode(args, kwargs, reproducible=unique)

    def _on(self, bus: Any) -> Any:
        queue = self._queues.get(bus)
        if queue is None:
            queue = self._queues[bus] = bus.queue(self.queue)
        return queue

    def _checked(self, items: Iterable[Any]) -> Iterable[Any]:
        for item in items:
            if not isinstance(item, Item) or item.of.function is not self.function:
                raise UsageError(
                    f"{item!r} is not a call of the task {self.name!r}",
                    hint=f"make it with {self.name}.item(...)",
                )
            # Write the task's own envelope once for the whole batch.
            plain = item.envelope is self._envelope and "unique" not in item.envelope
            yield item.payload if plain else enveloped(item.payload, item.envelope)

    def _batch(self) -> dict[str, Any]:
        others = sorted(name for name in self._when if name != "on_full")
        if others:
            raise UsageError(
                f"publish_many has no option {others[0]!r}", hint="publish each task by itself"
            )
        return {**self._envelope, **self._when}


class Item(Generic[R]):
    """A call of a typed task that was not published yet."""

    __slots__ = ("envelope", "of", "payload")

    def __init__(
        self, of: TypedTask[..., ..., Any, R], payload: Any, envelope: dict[str, Any]
    ) -> None:
        self.of = of
        self.payload = payload
        self.envelope = envelope


def enveloped(payload: Any, envelope: dict[str, Any]) -> Task:
    """Return the task of a call; a unique task without a key gets one from its name and payload."""
    if envelope.get("unique") is not None and envelope.get("key") is None:
        data = as_json([envelope["task"], payload])
        envelope = {**envelope, "key": f"sha256-{hashlib.sha256(data).hexdigest()}"}
    return Task(payload, **envelope)


AnyTask: TypeAlias = TypedTask[..., ..., Any, Any]
