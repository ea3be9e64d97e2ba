"""Executors that time each attempt, for the log of attempts, and the choice of an executor."""

from __future__ import annotations

import time
from collections.abc import Container
from typing import TYPE_CHECKING

from agentbus.workers.batch import TaskOutcome
from agentbus.workers.executors import Batches, Coroutines, Finish, Inline, is_async

if TYPE_CHECKING:
    import asyncio

    from agentbus.queues.claimed import Taken
    from agentbus.workers.batch import TaskBatch
    from agentbus.workers.executors import Handler, Wrap
    from agentbus.workers.pause import Halt

_clock = time.monotonic
_inline, _coroutine = Inline.one, Coroutines.one


class TimedInline(Inline):
    """Runs a synchronous handler, and times each attempt."""

    timed = True

    def one(self, task: Taken, wrap: Wrap, began: float) -> TaskOutcome | Taken:
        task.began = began
        outcome = _inline(self, task, wrap, began)
        task.took = _clock() - began
        if outcome is not task:
            _unmade(outcome)
        return outcome


class TimedCoroutines(Coroutines):
    """Runs an asynchronous handler, and times each attempt."""

    async def one(self, task: Taken, wrap: Wrap, began: float) -> TaskOutcome | Taken:
        task.began = began
        outcome = await _coroutine(self, task, wrap, began)
        task.took = _clock() - began
        if outcome is not task:
            _unmade(outcome)
        return outcome


class TimedBatches(Batches):
    """Runs a handler for a list of tasks, of which each takes its share of the time."""

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:
        before = len(batch.outcomes)
        tasks = list(batch.left)
        began = _clock()
        for task in tasks:
            # The handler may settle it.
            task.began = began
        super().__call__(batch, wrap)
        took = (_clock() - began) / max(1, len(tasks))
        for task in tasks:
            task.took = took
        for outcome in batch.outcomes[before:]:
            _unmade(outcome)


def _unmade(outcome: TaskOutcome | Taken) -> None:
    """Let an attempt that was not made have no beginning: its task is malformed, expired or cancelled."""
    if isinstance(outcome, TaskOutcome) and (not outcome.begun or isinstance(outcome.error, str)):
        del outcome.task.began


def executor(
    handler: Handler,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    stopping: Halt | None = None,
    cancelled: Container[tuple[str, bytes]] = (),
    timed: bool = False,
) -> Inline | Coroutines:
    """Return the serial executor for this kind of handler; it times attempts if they are logged."""
    if is_async(handler):
        kind = TimedCoroutines if timed else Coroutines
        return kind(handler, Finish(loop, keep=True), stopping, cancelled)
    return (TimedInline if timed else Inline)(
        handler, Finish(loop, keep=False), stopping, cancelled
    )
