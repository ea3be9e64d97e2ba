"""The driver that blocks: it runs an operation's steps over a link, one by one."""

from __future__ import annotations

import time

from agentbus.store.steps import Emit, LinkDown, Pause, ServerReply, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any, TypeVar

    from agentbus.store.steps import Link, Op, Step

    T = TypeVar("T")


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
            except (LinkDown, ServerReply) as failure:
                step = op.throw(failure)
            else:
                step = send(reply)
    except StopIteration as result:
        value: T = result.value
        return value


def at_once(link: Link, op: Op[T], deadline: float, again: Callable[[Op[T]], Op[T]]) -> T:
    """Run an operation; only from its first failure on does `again` wrap it, to have it tried again.

    Nearly nothing ever fails, and what waits for failures costs a tenth of a publish.
    """
    execute, send = link.execute, op.send
    try:
        step = next(op)
        while not isinstance(step, Pause):
            step.within = deadline * 0.6
            step.sendings = 1
            try:
                reply = execute(step)
            except (LinkDown, ServerReply) as failure:
                if not (isinstance(failure, LinkDown) and failure.sent):
                    # It did not get there, or was not executed.
                    step.sendings = 0
                break
            step = send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    return run(link, again(_from(op, step)))


def _from(op: Op[T], step: Step) -> Op[T]:
    # The step is sent anew: an error is then met again, where it is understood.
    try:
        while True:
            try:
                reply = yield step
            except BaseException as failure:  # noqa: BLE001 (all of them are the operation's)
                step = op.throw(failure)
            else:
                step = op.send(reply)
    except StopIteration as result:
        value: T = result.value
        return value
    finally:
        op.close()


def iterate(link: Link, op: Op[Any]) -> Iterator[Any]:
    """Run an operation, blocking, and yield what it emits."""
    try:
        step = next(op)
        while True:
            if isinstance(step, Emit):
                try:
                    yield step.value
                except GeneratorExit:
                    # Let it keep its books (a cursor moves past what was consumed), then end.
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
    except (LinkDown, ServerReply) as failure:
        return op.throw(failure)
    return op.send(reply)
