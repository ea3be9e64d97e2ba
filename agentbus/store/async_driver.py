"""The asynchronous driver: runs operations in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.store.driver import rest
from agentbus.store.operation import MISREAD, misread
from agentbus.store.steps import Emit, LinkDown, Pause, Push, ServerReply, Step, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.store.coalesce import Coalescer
    from agentbus.store.steps import Op

T = TypeVar("T")


class AsyncLink(Protocol):
    """A connection to the server that many coroutines share."""

    name: str

    async def execute(self, step: Step) -> Any:
        """Exchange one step; raises `LinkDown` or `ServerReply`."""

    async def aclose(self) -> None:
        """Close what is open."""


async def run(link: AsyncLink, op: Op[T]) -> T:
    """Run an operation to its end and return its result."""
    try:
        step = next(op)
        while True:
            reply, failure = await _exchange(link, step)
            step = op.send(reply) if failure is None else op.throw(failure)
    except StopIteration as result:
        value: T = result.value
        return value


async def at_once(
    link: AsyncLink,
    op: Op[T],
    deadline: float,
    again: Callable[[Op[T], float], Op[T]],
    coalescer: Coalescer,
) -> T:
    """Run an operation; after its first failure, wrap it in `again`, as the blocking driver does.

    Single payloads are sent together with those of other callers.
    """
    execute, now = link.execute, time.monotonic
    step = None
    try:
        step = next(op)
        while not isinstance(step, Pause):
            step.within = deadline * 0.6
            shared, pushes = None, 0
            if isinstance(step, Push):
                shared, pushes = coalescer.append(step), 1
            if shared is not None:
                try:
                    reply = await shared
                except AgentBusError as error:
                    step = op.throw(error)
                    continue
                step = op.send(reply)
                continue
            if coalescer.waiting:
                coalescer.flush()
            step.sendings = 1
            began = now()
            coalescer.in_flight += pushes
            try:
                reply = await execute(step)
            except (LinkDown, ServerReply) as failure:
                if not (isinstance(failure, LinkDown) and failure.sent):
                    # It did not arrive, or was not executed.
                    step.sendings = 0
                return await run(link, again(rest(op, step), now() - began))
            finally:
                coalescer.in_flight -= pushes
            step = op.send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    except MISREAD as error:
        misread(error, step, link.name)
        raise
    return await run(link, again(rest(op, step), 0.0))


async def iterate(link: AsyncLink, op: Op[Any]) -> AsyncGenerator[Any]:
    """Run an operation and yield what it emits."""
    left = False
    try:
        step = next(op)
        while True:
            if isinstance(step, Emit):
                try:
                    yield step.value
                except GeneratorExit:
                    # Let it finish (a cursor moves past what was consumed), then end.
                    left = True
                    step = op.throw(Stopped())
                else:
                    step = op.send(None)
            else:
                reply, failure = await _exchange(link, step)
                step = op.send(reply) if failure is None else op.throw(failure)
    except (StopIteration, Stopped):
        return
    except BackendUnavailable:
        # An event loop closes abandoned generators, maybe after the bus. Nobody can handle the error, and
        # messages past the cursor are read again.
        if not left:
            raise


async def _exchange(link: AsyncLink, step: Step) -> tuple[Any, LinkDown | ServerReply | None]:
    if isinstance(step, Pause):
        await asyncio.sleep(step.seconds)
        return None, None
    try:
        return await link.execute(step), None
    except (LinkDown, ServerReply) as failure:
        return None, failure
