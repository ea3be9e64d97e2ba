"""Retries an operation's steps after transient failures, within a deadline."""

from __future__ import annotations

import time

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.store.steps import (
    Batch,
    Denied,
    Emit,
    LinkDown,
    Pause,
    ServerReply,
    Stopped,
    Take,
    Unable,
    Unconfirmed,
    Wait,
    is_passing,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from agentbus.store.steps import Advice, Op, Step

    T = TypeVar("T")

# Exceptions that an unexpected reply can cause when it is parsed.
MISREAD = (ServerReply, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)

# Errors with which the server refuses a write before it checks for an earlier execution.
_UNSEEN = frozenset(("OOM", "MISCONF", "NOREPLICAS"))
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
# Seconds for the final retry of a write that may have been executed.
_LOOK_BACK = 2.0


def attempt(
    op: Op[T],
    *,
    where: str,
    deadline: float,
    patience: float | Callable[[], float] | None = None,
    answered: bool = False,
    elapsed: float = 0.0,
    advice: Advice | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    meanwhile: Callable[[], None] | None = None,
) -> Op[T]:
    """Wrap `op` so that steps are retried after transient failures, within a deadline.

    `deadline` is in seconds and counts while the server does not answer. Once it has answered (`answered`:
    before this call), `patience` may extend it: seconds from the start, or a function that returns the
    seconds left. A verb that waits for an hour thus survives a restart. `elapsed` is the seconds that the
    first step has taken already. A write that may have been executed is sent once more after the deadline,
    for up to 2 seconds: its answer says whether it was. If it is refused then, or cannot be sent, that says
    nothing of the first copy, so the outcome is unknown. `advice` is a hint for when the server does not
    answer. `meanwhile` is called while the first answer is awaited.
    """
    began = monotonic() - elapsed

    def allowed(since: float) -> float:
        if not answered or patience is None:
            return deadline
        if callable(patience):
            return monotonic() + patience() - since
        return max(deadline, began + patience - since)

    try:
        step = next(op := _readable(op, where))
        step.meanwhile = step.meanwhile or meanwhile
        while True:
            started, elapsed = monotonic() - elapsed, 0.0
            pause, maybe_done, looks_back = _FIRST_PAUSE, step.sendings > 0, False
            while True:
                left = _LOOK_BACK if looks_back else started + allowed(started) - monotonic()
                # Reserve time for a second attempt on a new connection: this one may be half-open.
                step.within = min(max(left if step.sendings else left * 0.6, 0.2), deadline)
                step.sendings += 1
                try:
                    reply = yield step
                except (LinkDown, ServerReply, AgentBusError) as failure:
                    if step.optional:
                        step = op.throw(failure)
                        break
                    maybe_done = maybe_done or (isinstance(failure, LinkDown) and failure.sent)
                    written = maybe_done and step.writes
                    if isinstance(failure, AgentBusError) or _is_final(failure, answered, written):
                        step = op.throw((yield from _refused(failure, step, where, written)))
                        break
                    left = started + allowed(started) - monotonic()
                    if left <= 0:
                        if written and not (looks_back or isinstance(failure, Unconfirmed)):
                            # If the write was executed, the same request returns the recorded
                            # outcome.
                            looks_back = True
                            continue
                        step = op.throw(
                            _given_up(failure, step, where, allowed(started), maybe_done, advice)
                        )
                        break
                    yield Pause(min(pause, left))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    if isinstance(step, (Wait, Take)):
                        # The blocking time may be used up; the operation decides what to do.
                        step.seconds = min(step.seconds, 0.05)
                except Stopped as stop:
                    step = op.throw(stop)
                    break
                else:
                    answered = answered or not isinstance(step, Emit)
                    step = op.send(reply)
                    break
    except StopIteration as result:
        value: T = result.value
        return value
    finally:
        op.close()


def _explained(failure: ServerReply, step: Step) -> Op[ServerReply]:
    """Return a failure that names the key of another type, if that is among those of the step."""
    from agentbus.core.key_types import spoilt, type_of

    words = [*getattr(step, "keys", ()), *getattr(step, "args", ()), getattr(step, "stream", "")]
    named = (text(word) if isinstance(word, bytes) else str(word) for word in words)
    keys = [key for key in named if type_of(key) is not None]
    if not keys:
        return failure
    try:
        types = yield Batch([("TYPE", key) for key in keys])
    except (LinkDown, ServerReply):
        return failure
    for key, kind in zip(keys, types, strict=True):
        if isinstance(kind, bytes) and (said := spoilt(key, text(kind))):
            return ServerReply(f"WRONGTYPE {said}")
    return failure


def _is_final(failure: LinkDown | ServerReply, answered: bool, maybe_done: bool) -> bool:
    if isinstance(failure, Unable):
        # After a failover, the replicas of the new primary are on their way.
        return not maybe_done
    if isinstance(failure, LinkDown):
        # A connection that the system forbids from the start will not be allowed soon.
        return isinstance(failure, Denied) and not answered
    # A full server cannot report whether it executed the first copy: retry until it has memory.
    return not is_passing(failure) and not (maybe_done and failure.code in _UNSEEN)


def _readable(op: Op[T], where: str) -> Op[T]:
    """Run an operation, turning a reply that it cannot parse into an error with a readable message."""
    step = None
    try:
        step = next(op)
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
    except MISREAD as error:
        misread(error, step, where)
        raise
    finally:
        op.close()


def misread(error: Exception, step: Step | None, where: str) -> None:
    """Raise the error for a reply that an operation could not parse, unless its caller is at fault."""
    from agentbus.store.failures import unreadable

    failure = unreadable(error, step, where)
    if failure is not None and step is not None:
        failure.operation = step.label
        raise failure from error


def named(op: Op[T], name: str) -> Op[T]:
    """Run an operation; its errors name it so, in place of one of its steps."""
    try:
        return (yield from op)
    except AgentBusError as error:
        error.name_operation(name)
        raise


def _refused(failure: Exception, step: Step, where: str, maybe_done: bool) -> Op[AgentBusError]:
    from agentbus.store.failures import refused, repeated

    if isinstance(failure, ServerReply) and failure.code == "WRONGTYPE":
        failure = yield from _explained(failure, step)
    error = refused(failure, step, where)
    if maybe_done:
        error = repeated(error, step, where)
    error.operation = step.label
    return error


def _given_up(failure: LinkDown | ServerReply, step: Step, *rest: Any) -> AgentBusError:
    from agentbus.store.failures import given_up

    error = given_up(failure, step, *rest)
    error.operation = step.label
    return error
