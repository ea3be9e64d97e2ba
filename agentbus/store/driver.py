"""The blocking driver: runs an operation's steps over a link, one by one."""

from __future__ import annotations

import time

from agentbus.core.errors import AgentBusError
from agentbus.store.operation import MISREAD, misread
from agentbus.store.steps import Emit, LinkDown, Pause, ServerReply, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any, TypeVar

    from agentbus.store.steps import Link, Op, Step

    T = TypeVar("T")


# A link raises errors of ours where it cannot connect, or was closed.
FAILURES = (LinkDown, ServerReply, AgentBusError)


def run(link: Link, op: Op[T]) -> T:
    """Run an operation to its end, blocking, and return its result."""
    execute, send = link.execute, op.send
    try:
        step = next(op)
        while True:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                step = send(None)
                continue
            try:
                reply = execute(step)
            except FAILURES as failure:
                step = op.throw(failure)
            else:
                step = send(reply)
    except StopIteration as result:
        value: T = result.value
        return value


def at_once(
    link: Link,
    op: Op[T],
    deadline: float,
    again: Callable[[Op[T], float], Op[T]],
    meanwhile: Callable[[], None] | None = None,
) -> T:
    """Run an operation; after its first failure, wrap it in `again`, which retries.

    Failures are rare, and wrapping every operation would cost a tenth of a publish. `again` also receives
    the seconds that the failed step took. `meanwhile` is called while the first reply is awaited.
    """
    execute, send, now = link.execute, op.send, time.monotonic
    step = None
    try:
        step = next(op)
        step.meanwhile = step.meanwhile or meanwhile
        while not isinstance(step, Pause):
            step.within = deadline * 0.6
            step.sendings = 1
            began = now()
            try:
                reply = execute(step)
            except FAILURES as failure:
                if not (isinstance(failure, LinkDown) and failure.sent):
                    # The request was not sent, or the server refused to execute it.
                    step.sendings = 0
                # Resend the step through the retry loop, which handles a repeated error.
                return run(link, again(rest(op, step), now() - began))
            step = send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    except MISREAD as error:
        misread(error, step, link.name)
        raise
    return run(link, again(rest(op, step), 0.0))


def rest(op: Op[T], step: Step) -> Op[T]:
    """Continue an operation from one of its steps."""
    try:
        while True:
            try:
                reply = yield step
            except BaseException as failure:  # noqa: BLE001 (passed on to the operation)
                step = op.throw(failure)
            else:
                step = op.send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    finally:
        op.close()


def iterate(link: Link, op: Op[Any]) -> Iterator[Any]:
    """Run an operation, blocking, and yield the values that it emits."""
    try:
        step = next(op)
        while True:
            if isinstance(step, Emit):
                try:
                    yield step.value
                except GeneratorExit:
                    # Let the operation finish (a cursor moves past consumed messages), then end.
                    step = op.throw(Stopped())
                else:
                    step = op.send(None)
            else:
                step = _exchange(link, op, step)
    except (StopIteration, Stopped):
        return


def _exchange(link: Link, op: Generator[Step, Any, Any], step: Step) -> Step:
    if isinstance(step, Pause):
        time.sleep(step.seconds)
        return op.send(None)
    try:
        reply = link.execute(step)
    except FAILURES as failure:
        return op.throw(failure)
    return op.send(reply)
