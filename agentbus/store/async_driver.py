"""The asynchronous driver: runs operations in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.store.driver import FAILURES, rest
from agentbus.store.operation import MISREAD, misread
from agentbus.store.steps import Emit, LinkDown, Pause, Push, Step, Stopped

if TYPE_CHECKING:
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


class Calls(Protocol):
    """The owner of operations, with hooks before and after each."""

    link: AsyncLink
    coalescer: Coalescer
    # Maximum seconds for an operation.
    deadline: float

    def recorded(self, op: Op[T], now: float) -> Op[T]:
        """Wrap an operation so that it records this session, if that is due."""

    def again(self, op: Op[T], elapsed: float) -> Op[T]:
        """Wrap an operation in retries, `elapsed` seconds after its start."""

    def record(
        self,
        verb: str | None,
        began: float,
        error: BaseException | None = None,
        result: object = None,
    ) -> None:
        """Log how an operation ended."""


async def at_once(calls: Calls, op: Op[T], verb: str | None) -> T:
    """Run an operation; after its first failure, wrap it in `again`, as the blocking driver does.

    Single payloads are joined with those of other callers. A single coroutine does all this: a second one
    around it would cost a tenth of a publish.
    """
    link, coalescer, now = calls.link, calls.coalescer, time.monotonic
    start = now()
    elapsed, step = 0.0, None
    try:
        op = calls.recorded(op, start)
        try:
            step = next(op)
            while not isinstance(step, Pause):
                step.within = calls.deadline * 0.6
                shared, pushes = None, 0
                if isinstance(step, Push):
                    shared, pushes = coalescer.append(step), 1
                if shared is not None:
                    try:
                        reply = await shared
                    except AgentBusError as error:
                        step = op.throw(error)
                    else:
                        step = op.send(reply)
                    continue
                if coalescer.waiting:
                    coalescer.flush()
                step.sendings = 1
                began = now()
                coalescer.in_flight += pushes
                try:
                    reply = await link.execute(step)
                except FAILURES as failure:
                    if not (isinstance(failure, LinkDown) and failure.sent):
                        # The request was not sent, or the server refused to execute it.
                        step.sendings = 0
                    elapsed = now() - began
                    break
                finally:
                    coalescer.in_flight -= pushes
                step = op.send(reply)
        except StopIteration as result:
            value: T = result.value
            calls.record(verb, start, None, value)
            return value
        except MISREAD as error:
            misread(error, step, link.name)
            raise
        value = await run(link, calls.again(rest(op, step), elapsed))
    except AgentBusError as error:
        calls.record(verb, start, error)
        raise
    calls.record(verb, start, None, value)
    return value


async def iterate(link: AsyncLink, op: Op[Any]) -> AsyncGenerator[Any]:
    """Run an operation and yield the values that it emits."""
    left = False
    try:
        step = next(op)
        while True:
            if isinstance(step, Emit):
                try:
                    yield step.value
                except GeneratorExit:
                    # Let the operation finish (a cursor moves past consumed messages), then end.
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
        # The event loop closes abandoned generators, perhaps after the bus. Nobody can handle this
        # error, and messages after the cursor are read again.
        if not left:
            raise


async def _exchange(link: AsyncLink, step: Step) -> tuple[Any, Exception | None]:
    if isinstance(step, Pause):
        await asyncio.sleep(step.seconds)
        return None, None
    try:
        return await link.execute(step), None
    except FAILURES as failure:
        return None, failure
