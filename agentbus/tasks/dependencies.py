"""Gives tasks their dependencies besides the payload: the bus, the delivery, and provided objects."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from agentbus.client.aio import AsyncBus
from agentbus.client.bus import Bus
from agentbus.core.errors import UsageError
from agentbus.queues.delivery import AsyncDelivery, Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.tasks.typed_task import AnyTask

_BLOCKING, _AWAITED = (Bus, Delivery), (AsyncBus, AsyncDelivery)
OWN = (*_BLOCKING, *_AWAITED)


class Provided(NamedTuple):
    """A value or its factory, and whether each task gets its own or all tasks of a worker share it."""

    kind: type[Any]
    source: Any
    per: str

    def opened(self) -> Any:
        """Return the value, or a context manager or awaitable that produces it."""
        source = self.source
        if _is_a(source, self.kind) or not callable(source):
            return source
        if inspect.isgeneratorfunction(source):
            return contextmanager(source)()
        if inspect.isasyncgenfunction(source):
            return asynccontextmanager(source)()
        return source()


def check(task: AnyTask, provided: Mapping[type[Any], Provided]) -> None:
    """Raise `UsageError` if a worker cannot provide a dependency of a task."""
    for kind in task.given:
        wrong = _BLOCKING if task.is_coroutine else _AWAITED
        if kind in wrong:
            other = OWN[(OWN.index(kind) + 2) % 4].__name__
            raise UsageError(
                f"the task {task.name!r} asks for {_name(kind)}, and is "
                f"{'a coroutine function' if task.is_coroutine else 'not a coroutine function'}",
                hint=f"ask for {other}",
            )
        if kind not in OWN and kind not in provided:
            raise UsageError(
                f"the task {task.name!r} asks for {_name(kind)}, which nothing provides",
                hint=f"call tasks.provide({_name(kind)}, ...)",
            )


class Surroundings:
    """The dependencies of one worker's tasks, opened on first use and closed with the worker."""

    def __init__(
        self, provided: Mapping[type[Any], Provided], bus: Bus | None, abus: AsyncBus | None
    ) -> None:
        self._provided = provided
        self._bus = bus
        self._abus = abus
        self._kept: dict[type[Any], Any] = {}
        self._stack, self._astack = ExitStack(), AsyncExitStack()
        self._lock, self._alock = threading.RLock(), asyncio.Lock()

    def close(self) -> None:
        """Close the dependencies that tasks shared."""
        self._stack.close()

    async def aclose(self) -> None:
        """Close the dependencies that tasks shared, synchronous and asynchronous."""
        await self._astack.aclose()
        await asyncio.to_thread(self._stack.close)

    def give(self, task: AnyTask, delivery: Any, stack: ExitStack) -> list[Any]:
        """Return the dependencies of a task; `stack` closes those for this task alone."""
        return [self._one(kind, delivery, stack) for kind in task.given]

    async def agive(self, task: AnyTask, delivery: Any, stack: AsyncExitStack) -> list[Any]:
        """Return the dependencies of a coroutine, like `give`."""
        return [await self._aone(kind, delivery, stack) for kind in task.given]

    def _one(self, kind: type[Any], delivery: Any, stack: ExitStack) -> Any:
        if kind is Delivery:
            return delivery
        if kind is Bus:
            return self._blocking_bus()
        source = self._provided[kind]
        if source.per == "task":
            return _entered(source, stack)
        with self._lock:
            if kind not in self._kept:
                self._kept[kind] = _entered(source, self._stack)
            return self._kept[kind]

    async def _aone(self, kind: type[Any], delivery: Any, stack: AsyncExitStack) -> Any:
        if kind is AsyncDelivery:
            return delivery
        if kind is AsyncBus:
            return self._abus
        source = self._provided[kind]
        if source.per == "task":
            return await _aentered(source, stack)
        async with self._alock:
            if kind not in self._kept:
                self._kept[kind] = await _aentered(source, self._astack)
            return self._kept[kind]

    def _blocking_bus(self) -> Bus:
        with self._lock:
            if self._bus is None:
                assert self._abus is not None
                # Synchronous tasks of an asynchronous worker need a blocking bus, too.
                self._bus = self._stack.enter_context(Bus(self._abus.settings))
            return self._bus


def _entered(source: Provided, stack: ExitStack) -> Any:
    opened = source.opened()
    if _is_a(opened, source.kind):
        return opened
    if hasattr(opened, "__enter__"):
        return stack.enter_context(opened)
    if hasattr(opened, "__aenter__") or inspect.isawaitable(opened):
        if inspect.iscoroutine(opened):
            opened.close()
        raise UsageError(
            f"{_name(source.kind)} is provided by a coroutine, and a function asks for it",
            hint="make the task a coroutine function, or provide it by a function",
        )
    return opened


async def _aentered(source: Provided, stack: AsyncExitStack) -> Any:
    opened = source.opened()
    if _is_a(opened, source.kind):
        return opened
    if hasattr(opened, "__aenter__"):
        return await stack.enter_async_context(opened)
    if hasattr(opened, "__enter__"):
        return stack.enter_context(opened)
    return await opened if inspect.isawaitable(opened) else opened


def _is_a(value: Any, kind: type[Any]) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:
        # Protocols and generic types may not support isinstance().
        return False


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
