"""Starts tasks of a limited queue, or defers them until its limits allow it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agentbus.core.errors import InvalidName
from agentbus.core.keys import pause_field
from agentbus.queues.ids import ASIDE, STREAMS
from agentbus.queues.limits import QueueLimit
from agentbus.queues.ordering import Ordering
from agentbus.store.steps import Batch, Script

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op


def ask(consumer: Ordering, task: Taken) -> Op[int]:
    """Start a task (1), or defer it until the limits allow it (0).

    Returns -1 if this consumer no longer holds the task. Atomic and idempotent.
    """
    assert consumer.limit is not None
    words = (
        *(STREAMS.index(task.priority) + 1, task.entry_id, consumer.limit.key_of(task)),
        max(0, task.attempt - 1),
    )
    code: int = yield _script(consumer, consumer.limit, *words)
    return code


def grant(consumer: Ordering) -> Op[int]:
    """Give free slots to waiting tasks, and return the number of these tasks."""
    assert consumer.limit is not None
    given: int = yield _script(consumer, consumer.limit)
    return given


def release(scope: Scope, queue: str, groups: Iterable[str]) -> Op[int]:
    """Start the tasks of these groups that wait for limits of a queue, if it no longer has limits.

    Returns the number of tasks that waited.
    """
    waited = 0
    for group in groups:
        try:
            consumer = Ordering(scope, queue, group, scope.agent)
        except InvalidName:
            # Another program created this group, which has no keys of the bus.
            continue
        while page := (yield _script(consumer, QueueLimit())):
            waited += page
    return waited


def release_rest(scope: Scope, queue: str, groups: Iterable[str]) -> Op[None]:
    """Complete a removal of limits whose process was killed before the end."""
    names, keys = [*groups], scope.keys
    asked = [("EXISTS", *keys.limits(queue, name)) for name in names]
    limited, *left = yield Batch([("HGET", keys.paused, pause_field("limit", queue)), *asked])
    if limited is None:
        kept = (name for name, number in zip(names, left, strict=True) if number)
        yield from release(scope, queue, kept)


def _script(consumer: Ordering, limit: QueueLimit, *words: Arg) -> Script:
    keys, rate = consumer.scope.keys, limit.per_second
    of = consumer.queue, consumer.group
    return Script(
        "limit",
        (
            *keys.limits(*of),
            *(keys.bell(consumer.queue), keys.paused),
            *(
                key
                for priority, stream in consumer.streams.items()
                for key in (stream, consumer.attempts(priority), consumer.retries(priority))
            ),
        ),
        (
            *(consumer.group, consumer.consumer, ASIDE, pause_field("limit", consumer.queue)),
            "" if limit.at_once is None else limit.at_once,
            "" if rate is None else repr(rate),
            "" if rate is None else limit.burst or max(1, math.floor(rate)),
            *words,
        ),
        writes=True,
    )
