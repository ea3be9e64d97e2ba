"""`Queue.fetch`: takes tasks for a program that acknowledges them itself, without a worker."""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
import weakref
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.core import validate
from agentbus.queues.consumer import Consumption
from agentbus.queues.delivery import AsyncDelivery, Delivery
from agentbus.queues.runner import AsyncRunner
from agentbus.store.steps import Pause
from agentbus.workers import registry
from agentbus.workers.fetched import Fetched, FetchTally
from agentbus.workers.fetcher import FIRST, Fetcher, at_tail
from agentbus.workers.reclaim import Reclaimer, seconds

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.queues.runner import Runner
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Retries and delayed tasks may become due while a fetch waits for new ones.
_LOOK_EVERY = 0.1
# How much longer each look of a long wait is.
_LONGER = 1.2


class Here:
    """The consumer of one bus in this process, and when it next reclaims."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # With one name for a bus and process, calls do not leave consumers behind.
        self.name = f"{socket.gethostname()}:{self.process}:{secrets.token_hex(4)}"
        self.due_at: dict[tuple[str, str], float] = {}
        self.tallies: dict[tuple[str, str], FetchTally] = {}

    def tally(self, scope: Scope, queue: str, group: str) -> FetchTally:
        """Return the counts of a group."""
        known = self.tallies.get((queue, group))
        return known or self.tallies.setdefault(
            (queue, group), FetchTally(scope, queue, group, self.name)
        )

    def flush(self) -> Op[None]:
        """Write the counts that were not written yet."""
        if self.process == os.getpid():
            for tally in list(self.tallies.values()):
                yield from tally.flush()


_consumers: weakref.WeakKeyDictionary[Any, Here] = weakref.WeakKeyDictionary()


def here(runner: Runner | AsyncRunner) -> Here:
    """Return the consumer of a bus in this process."""
    known = _consumers.get(runner)
    if known is None or known.process != os.getpid():
        known = _consumers[runner] = Here()
        runner.at_close.append(known.flush)
    return known


def fetch(
    runner: Runner | AsyncRunner,
    queue: str,
    *,
    group: str,
    count: int,
    block: float | None,
    visibility: float | None = None,
    start: str = FIRST,
) -> Op[list[AnyDelivery]]:
    """Take tasks for this process's consumer, waiting up to `block` seconds for the first one."""
    tail = at_tail(start)
    validate.number_of("count", count, "tasks")
    if block is not None:
        validate.wait("block", block)
    scope, policy = runner.scope, runner.policy(queue)
    visible = seconds(policy.visibility if visibility is None else visibility)
    known = here(runner)
    of: Any = {
        "kept": policy.results,
        "letters_of": policy.dead_letters,
        "recorded": policy.record_attempts,
    }
    consumer = Consumption(scope, queue, group, known.name, **of)
    tally = known.tally(scope, queue, group)
    # A group that this process has used is not new, even if the server has lost it.
    tail = tail and (queue, group) not in known.due_at
    due_at = known.due_at.get((queue, group), 0.0)
    reclaimer = Reclaimer(consumer, tally, visible, own=True, due_at=due_at)
    fetcher = Fetcher(consumer, reclaimer, tally, attempts=policy.attempts, tail=tail, exact=True)
    awaiting = isinstance(runner, AsyncRunner)
    taken = yield from tally.aboard(fetched(fetcher, count, block or 0.0, awaiting))
    known.due_at[queue, group] = reclaimer.due_at
    kind = AsyncDelivery if awaiting else Delivery
    holder = Fetched(scope, queue, group, known.name, **of)
    holder.tally, holder.since = tally, scope.monotonic()
    for task in taken:
        task.began = time.monotonic()
    return [kind(holder, partial(runner.run, verb="fetch"), task) for task in taken]


def fetched(
    fetcher: Fetcher, count: int, block: float, awaiting: bool, longest: float = _LOOK_EVERY
) -> Op[list[Taken]]:
    """Take tasks, waiting up to `block` seconds for the first one; none of a paused queue.

    After a while it looks only every `longest` seconds for retries, and for delayed tasks that others
    publish meanwhile.
    """
    consumer = fetcher.consumer
    until = time.monotonic() + block
    # A paused queue has its group, too: tasks that are published now are counted for it.
    yield from fetcher.prepare()
    look = _LOOK_EVERY
    while True:
        left = until - time.monotonic()
        moment = max(0.001, min(look, left))
        look = min(longest, look * _LONGER)
        taken: list[Taken] = []
        paused = yield from _paused(consumer)
        if not paused:
            taken = yield from _due(fetcher, count)
            if not taken and left > 0 and not awaiting:
                moment = max(0.001, min(moment, fetcher.due_in))
                found = yield from fetcher.wait(count, moment)
                # The server applied the count to each priority.
                yield from consumer.give_back(found[count:])
                fetcher.put_aside(len(found[count:]))
                taken = yield from _admitted(fetcher, found[:count])
        if left > 0 and not taken and (paused or awaiting):
            # A blocking read would stop all coroutines, which share the connection.
            yield Pause(moment)
        if taken or left <= 0:
            break
    if taken and (yield from _paused(consumer)):
        # It was paused meanwhile: tasks published after that must not be handed out.
        yield from consumer.give_back(taken)
        fetcher.put_aside(len(taken))
        return []
    return taken


def _paused(consumer: Consumption) -> Op[bool]:
    scope = consumer.scope
    return (yield from registry.held(scope, consumer.queue, scope.agent, consumer)) is not None


def _admitted(fetcher: Fetcher, found: Iterable[Taken]) -> Op[list[Taken]]:
    """Return the tasks that may start; malformed ones are buried."""
    taken = []
    for task in found:
        if task.error is not None:
            yield from fetcher.bury(task, f"the entry is malformed: {task.error}")
        elif (expired := task.expired(fetcher.consumer.scope.now())) is not None:
            task.attempt = max(0, task.attempt - 1)
            yield from fetcher.bury(task, expired)
        elif (yield from fetcher.admitted(task)):
            taken.append(task)
    return taken


def _due(fetcher: Fetcher, count: int) -> Op[list[Taken]]:
    """Take redelivered tasks, then new ones."""
    consumer, reclaimer = fetcher.consumer, fetcher.reclaimer
    yield from fetcher.prepare()
    _, due = yield from consumer.promote()
    fetcher.due_in = math.inf if due is None else due
    fetcher.look_again()
    yield from reclaimer.reclaim()
    taken: list[Taken] = []
    while not taken:
        # What was delivered before is handed out alone: to hand it out is to begin its attempt, and a task
        # beside it may kill the process.
        found, _ = yield from fetcher.retries(1, count)
        if not found:
            break
        taken += yield from _admitted(fetcher, found)
    if len(taken) < count and not any(task.redelivered for task in taken):
        # Tasks that wait for their ordering key must not hide those behind them.
        while True:
            _, found = yield from fetcher.new(count - len(taken))
            taken += yield from _admitted(fetcher, found)
            if taken or not found:
                break
    # Less often would do, but a program that fetches has no background thread.
    yield from consumer.bookmark()
    return taken
