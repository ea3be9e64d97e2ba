"""`Queue.fetch` takes tasks for programs that settle them; `take` and `settle` hold a task by a token.

`take` gives a task to an agent rather than a process: any process can later settle it by its token. Fetched
and settled tasks are counted, and the counts are written together with the program's requests.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from agentbus.core import validate
from agentbus.core.clock import rfc3339
from agentbus.core.errors import NotFound, StaleToken, TimedOut, UsageError
from agentbus.core.stream import text
from agentbus.queues import attempts, by_hand, task_state
from agentbus.queues.by_hand import AsyncTakenTask, HeldTask, SettledTask, TakenTask
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.delivery import AsyncDelivery, Delivery
from agentbus.queues.ids import BY_HAND, missing, taker
from agentbus.queues.results import Address
from agentbus.queues.retry import pause
from agentbus.queues.runner import AsyncRunner
from agentbus.store.steps import Batch, Command, Pause
from agentbus.workers import registry
from agentbus.workers.fetcher import FIRST, Fetcher, at_tail
from agentbus.workers.metrics import Tally
from agentbus.workers.reclaim import Reclaimer, seconds

if TYPE_CHECKING:
    from agentbus.queues.by_hand import AnyTakenTask
    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.queues.runner import Runner
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op, Script


# Seconds between two checks for due tasks: retries and delayed tasks may become due during a fetch.
_LOOK_EVERY = 0.1
# Factor by which the interval between checks grows.
_LONGER = 1.2
_consumers: weakref.WeakKeyDictionary[Any, Here] = weakref.WeakKeyDictionary()
T = TypeVar("T")
# Seconds between two entries in the metrics stream, as for a worker.
_EVERY = 1.0
OUTCOMES = ("done", "retry", "bury")
# Maximum seconds between two checks for retries during a long wait, on a `Bus` and on an
# `AsyncBus`.
_RETRIES_EVERY = (1.0, 0.1)


class Here:
    """The consumer of one bus in this process, and the time of its next reclaim."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Use one consumer name per bus and process, so that calls do not leave consumers behind.
        self.name = f"{socket.gethostname()}:{self.process}:{secrets.token_hex(4)}"
        self.due_at: dict[tuple[str, str], float] = {}
        # The longest visibility of a fetch, by queue and group.
        self.visible: dict[tuple[str, str], float] = {}
        self.tallies: dict[tuple[str, str], FetchTally] = {}

    def tally(self, scope: Scope, queue: str, group: str) -> FetchTally:
        """Return the counts of a group."""
        known = self.tallies.get((queue, group))
        return known or self.tallies.setdefault(
            (queue, group), FetchTally(scope, queue, group, BY_HAND + self.name)
        )

    def flush(self) -> Op[None]:
        """Write the counts that are not written yet."""
        if self.process == os.getpid():
            for tally in list(self.tallies.values()):
                yield from tally.flush()


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
    # Tasks that an earlier call took may be held for longer.
    held = known.visible[queue, group] = max(visible, known.visible.get((queue, group), 0.0))
    consumer = QueueConsumer(scope, queue, group, known.name, visibility=held, **of)
    tally = known.tally(scope, queue, group)
    # A group that this process has used is not new, even if the server has lost it.
    tail = tail and (queue, group) not in known.due_at
    due_at = known.due_at.get((queue, group), 0.0)
    reclaimer = Reclaimer(consumer, tally, visible, own=True, due_at=due_at)
    fetcher = Fetcher(consumer, reclaimer, tally, attempts=policy.attempts, tail=tail, exact=True)
    awaiting = isinstance(runner, AsyncRunner)
    taken = yield from tally.aboard(take_tasks(fetcher, count, block or 0.0, awaiting))
    known.due_at[queue, group] = reclaimer.due_at
    kind = AsyncDelivery if awaiting else Delivery
    holder = Fetched(scope, queue, group, known.name, **of)
    holder.tally, holder.since = tally, scope.monotonic()
    for task in taken:
        task.began = time.monotonic()
    return [kind(holder, partial(runner.run, verb="fetch"), task) for task in taken]


def take_tasks(
    fetcher: Fetcher, count: int, block: float, awaiting: bool, longest: float = _LOOK_EVERY
) -> Op[list[Taken]]:
    """Take tasks, waiting up to `block` seconds for the first one; take none from a paused queue.

    After a while, the wait checks only every `longest` seconds for retries, and for delayed tasks that
    others publish during the wait.
    """
    consumer = fetcher.consumer
    until = time.monotonic() + block
    # Create the group of a paused queue too, so that tasks published from now on are counted for
    # it.
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
                received = yield from fetcher.wait(count, moment)
                # The server applied the count to each priority separately.
                yield from consumer.give_back(received[count:])
                fetcher.put_aside(len(received[count:]))
                taken = yield from _admit(fetcher, received[:count])
        if left > 0 and not taken and (paused or awaiting):
            # A blocking read would block all coroutines that share the connection.
            yield Pause(moment)
        if taken or left <= 0:
            break
    if taken and (yield from _paused(consumer)):
        # The queue was paused during the fetch: tasks published after the pause must not be
        # delivered.
        yield from consumer.give_back(taken)
        fetcher.put_aside(len(taken))
        return []
    return taken


def _paused(consumer: QueueConsumer) -> Op[bool]:
    scope = consumer.scope
    return (
        yield from registry.pause_reason(scope, consumer.queue, scope.agent, consumer)
    ) is not None


def _admit(fetcher: Fetcher, tasks: Iterable[Taken]) -> Op[list[Taken]]:
    """Return the tasks that may start; malformed ones become dead letters."""
    taken = []
    for task in tasks:
        if task.error is not None:
            yield from fetcher.bury(task, f"the entry is malformed: {task.error}")
        elif (expired := task.expired(fetcher.consumer.scope.server_now())) is not None:
            task.attempt = max(0, task.attempt - 1)
            yield from fetcher.bury(task, expired)
        elif (yield from fetcher.admit(task)):
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
        # Deliver a redelivered task alone, because its attempt begins here, and another task in the
        # same process could kill it.
        tasks, _ = yield from fetcher.retries(1, count)
        if not tasks:
            break
        taken += yield from _admit(fetcher, tasks)
    if len(taken) < count and not any(task.redelivered for task in taken):
        # Continue past tasks that wait for their ordering key.
        while True:
            _, tasks = yield from fetcher.new(count - len(taken))
            taken += yield from _admit(fetcher, tasks)
            if taken or not tasks:
                break
    # Record on every fetch, since a program that fetches has no background thread for it.
    yield from consumer.record_positions()
    return taken


class FetchTally(Tally):
    """The counts of one program's fetches for a group, written at most once a second.

    They are sent in the same exchange as a fetch or a settlement, and finally when the bus is closed.
    The worker's name says that they are counted by hand: no heartbeats follow.
    """

    def __init__(self, scope: Scope, queue: str, group: str, consumer: str) -> None:
        super().__init__(scope, queue, group, consumer)
        self._clock = scope
        self._due = scope.monotonic() + _EVERY

    def aboard(self, op: Op[T]) -> Op[T]:
        """Return an operation that also writes the counts, if they are due."""
        now = self._clock.monotonic()
        if now < self._due:
            return op
        self._due = now + _EVERY
        return self.beside(op)


class Fetched(QueueConsumer):
    """The consumer of fetched tasks: settles and counts them. `tally` is set after construction.

    A task's duration lasts from its fetch until it is settled.
    """

    tally: FetchTally
    # Time of the fetch, by the monotonic clock.
    since = 0.0

    def finish(self, task: Taken, took: float, result: object = None) -> Op[bool]:
        took = self.scope.monotonic() - self.since
        ours = yield from self.tally.aboard(super().finish(task, took, result))
        self._count(took, "processed" if ours else "stale")
        return ours

    def retry(
        self,
        task: Taken,
        after: float,
        *,
        error: BaseException | str | None = None,
        took: float = 0.0,
        ran: bool = True,
    ) -> Op[bool]:
        took = self.scope.monotonic() - self.since
        op = super().retry(task, after, error=error, took=took, ran=ran)
        ours = yield from self.tally.aboard(op)
        self._failed("retried" if ours else "stale")
        return ours

    def bury(self, task: Taken, error: BaseException | str, *, took: float = 0.0) -> Op[bool]:
        took = self.scope.monotonic() - self.since
        ours = yield from self.tally.aboard(super().bury(task, error, took=took))
        self._failed("dead" if ours else "stale")
        return ours

    def _failed(self, then: str) -> None:
        self.tally.note("failed")
        self._count(self.scope.monotonic() - self.since, then)

    def _count(self, took: float, outcome: str) -> None:
        self.tally.note(outcome)
        self.tally.count_runs(1, took)


class ByHand(Fetched):
    """The consumer of one task held by hand: settles it with its `token`."""

    token: str | None = None
    # Unix time at which the task's visibility ends.
    until = 0.0
    # The requested outcome; `dropped` is set if the task had been cancelled.
    asked = "done"
    dropped = False

    def finish(self, task: Taken, took: float, result: object = None) -> Op[bool]:
        self.asked = "done"
        return (yield from self._settled(task, super().finish(task, took, result)))

    def retry(
        self,
        task: Taken,
        after: float,
        *,
        error: BaseException | str | None = None,
        took: float = 0.0,
        ran: bool = True,
    ) -> Op[bool]:
        self.asked = "retry"
        op = super().retry(task, after, error=error, took=took, ran=ran)
        return (yield from self._settled(task, op))

    def bury(self, task: Taken, error: BaseException | str, *, took: float = 0.0) -> Op[bool]:
        return (yield from self._settled(task, super().bury(task, error, took=took)))

    def release(self, task: Taken) -> Op[bool]:
        ours = yield from self._settled(task, super().release(task))
        self.tally.note("released" if ours else "stale")
        return ours

    def drop(
        self,
        task: Taken,
        error: BaseException | str | None = None,
        *,
        took: float = 0.0,
        ran: bool = False,
    ) -> Op[bool]:
        self.dropped = True
        return (yield from super().drop(task, error, took=took, ran=ran))

    def _settled(self, task: Taken, op: Op[bool]) -> Op[bool]:
        ours = yield from op
        if ours and self.token is not None:
            yield from by_hand.forget(self.scope, self.id_of(task), self.group, self.token)
        return ours

    def _script(self, script: str, keys: Sequence[str], *argv: Arg) -> Script:
        step = super()._script(script, keys, *argv)
        if self.token is not None:
            # The scripts compare this token with that of the attempt that now holds the task.
            step.argv = (self.group, f"{self.consumer}\n{self.token}", *argv)
        return step

    def _run(
        self,
        task: Taken,
        outcome: str,
        error: BaseException | str | None = None,
        *,
        after: float | None = None,
    ) -> bytes:
        record = super()._run(task, outcome, error, after=after)
        if self.token is None:
            return record
        # The token and the requested outcome identify a repeated call.
        return record + b"," + orjson.dumps({"token": self.token, "asked": self.asked})[1:-1]


def take(
    runner: Runner | AsyncRunner,
    queue: str,
    *,
    group: str = "default",
    wait: float | None = None,
    visibility: float = by_hand.VISIBILITY,
) -> Op[AnyTakenTask]:
    """Take a task for this agent, and hold it by hand for `visibility` seconds; see `Bus.take`."""
    by_hand.seconds(visibility)
    if wait is not None:
        validate.wait("wait", wait)
    scope, policy = runner.scope, runner.policy(queue)
    consumer = _consumer(runner, queue, group, scope.agent)
    if not wait:
        yield from _must_exist(scope, queue, consumer)
    known, tally = here(runner), consumer.tally
    due_at = known.due_at.get((queue, group), 0.0)
    reclaimer = Reclaimer(consumer, tally, policy.visibility, own=True, due_at=due_at)
    fetcher = Fetcher(
        *(consumer, reclaimer, tally), attempts=policy.attempts, exact=True, counts_all=True
    )
    awaiting = isinstance(runner, AsyncRunner)
    # Coroutines poll for new tasks as well, so they need the shorter interval.
    longest = _RETRIES_EVERY[awaiting]
    until = time.monotonic() + (wait or 0.0)
    while True:
        left = max(0.0, until - time.monotonic())
        tasks = yield from tally.aboard(take_tasks(fetcher, 1, left, awaiting, longest))
        known.due_at[queue, group] = reclaimer.due_at
        if not tasks:
            raise (yield from _nothing(scope, queue, wait))
        (task,) = tasks
        consumer.since = scope.monotonic()
        task.began = time.monotonic()
        try:
            name = consumer.id_of(task)
            yield from by_hand.extend(consumer, name, task.priority, task.entry_id, visibility)
        except StaleToken:
            # Another consumer reclaimed the task between the two requests.
            continue
        kind = AsyncTakenTask if awaiting else TakenTask
        return kind(consumer, partial(runner.run, verb="take"), task)


def settle(
    runner: Runner | AsyncRunner,
    task_id: str,
    token: object,
    outcome: str = "done",
    *,
    result: object = None,
    error: str | None = None,
    after: float | None = None,
    group: str = "default",
) -> Op[SettledTask]:
    """Settle a task held by hand; see `Bus.settle`."""
    _check(outcome, result, error, after)
    asked = by_hand.checked(token)
    scope = runner.scope
    record = yield from by_hand.held_task(scope, task_id, asked, group)
    held = None if record is None else (yield from _as_taken(runner, record))
    if record is None or held is None:
        return (yield from _repeated(runner, task_id, asked, outcome, group))
    consumer, task = held
    policy, due = runner.policy(record.queue), None
    if outcome == "done":
        ours = yield from consumer.finish(task, 0.0, result)
        state = "done"
    else:
        pausing = policy.backoff.after(task.attempt) if after is None else after
        last = task.attempt >= task.limit(policy.attempts)
        if outcome == "bury" or last or task.expired(scope.server_now() + pausing):
            consumer.asked = outcome
            why = error or f"it was to be retried after its last attempt ({task.attempt})"
            ours = yield from consumer.bury(task, why)
            state = "dead"
        else:
            ours = yield from consumer.retry(task, pausing, error=error)
            state = "cancelled" if consumer.dropped else "retrying"
            due = None if consumer.dropped else scope.server_now() + pausing
    if not ours:
        return (yield from _repeated(runner, task_id, asked, outcome, group))
    return SettledTask(task_id, record.queue, group, state, task.attempt, due, repeated=False)


def give_back(
    runner: Runner | AsyncRunner, task_id: str, token: object, group: str = "default"
) -> Op[bool]:
    """Give a task back, due at once, without its attempt; return whether it was held with this token."""
    record = yield from by_hand.held_task(runner.scope, task_id, by_hand.checked(token), group)
    held = None if record is None else (yield from _as_taken(runner, record))
    if held is None:
        return False
    consumer, task = held
    return (yield from consumer.release(task))


def renew(
    runner: Runner | AsyncRunner,
    task_id: str,
    token: object,
    visibility: float = by_hand.VISIBILITY,
    *,
    group: str = "default",
) -> Op[HeldTask]:
    """Extend the visibility of a task held by hand to `visibility` seconds from now; see `Bus.renew`."""
    by_hand.seconds(visibility)
    asked = by_hand.checked(token)
    record = yield from by_hand.held_task(runner.scope, task_id, asked, group)
    if record is not None:
        priority, entry = record.place
        consumer = _consumer(runner, record.queue, group, record.agent_id)
        consumer.token = asked
        try:
            until = yield from by_hand.extend(
                consumer, task_id, priority, entry.encode(), visibility
            )
        except StaleToken:
            pass
        else:
            return record.held_until(until)
    raise (yield from _stale(runner, task_id, asked, group))


def _consumer(runner: Runner | AsyncRunner, queue: str, group: str, agent: str) -> ByHand:
    policy, known = runner.policy(queue), here(runner)
    consumer = ByHand(
        *(runner.scope, queue, group, BY_HAND + agent),
        kept=policy.results,
        letters_of=policy.dead_letters,
        recorded=policy.record_attempts,
    )
    consumer.tally = known.tally(runner.scope, queue, group)
    consumer.since = runner.scope.monotonic()
    return consumer


def _check(outcome: str, result: object, error: str | None, after: float | None) -> None:
    if outcome not in OUTCOMES:
        raise UsageError(f"the outcome is {outcome!r}", hint=f"use {', '.join(OUTCOMES)}")
    if result is not None and outcome != "done":
        raise UsageError("only a task that is done has a result", hint="leave the result out")
    if error is not None and outcome == "done":
        raise UsageError("a task that is done has no error", hint="leave the error out")
    if outcome == "bury" and not error:
        raise UsageError("a task that is buried needs an error", hint="say why it failed")
    if after is not None:
        if outcome != "retry":
            raise UsageError("only a retry has a pause", hint="leave 'after' out")
        pause(after)


def _must_exist(scope: Scope, queue: str, consumer: ByHand) -> Op[None]:
    keys = scope.keys
    places = (*consumer.streams.values(), keys.delayed(queue), keys.after(queue))
    (there,) = yield Batch([("EXISTS", *places)])
    if not there:
        raise (yield from missing(scope, queue))


def _nothing(scope: Scope, queue: str, wait: float | None) -> Op[NotFound | TimedOut]:
    """Return the error for a queue in which no task is ready."""
    order = yield from registry.pause_reason(scope, queue, scope.agent)
    why = "" if order is None else f": it is paused {order}"
    if wait:
        return TimedOut(f"waited {wait:g} s for a task of {queue!r}{why}")
    return NotFound(
        f"no task of {queue!r} is ready{why}",
        hint="wait for one: take(queue, wait=60)",
        shell_hint="wait for one with '--wait 60'",
    )


def _as_taken(runner: Runner | AsyncRunner, held_task: HeldTask) -> Op[tuple[ByHand, Taken] | None]:
    """Return a held task as it was taken, and its consumer; None if the token is stale."""
    scope, (priority, entry) = runner.scope, held_task.place
    consumer = _consumer(runner, held_task.queue, held_task.group, held_task.agent_id)
    time_now, entries, record, flat = yield Batch(
        [
            ("TIME",),
            ("XRANGE", consumer.streams[priority], entry, entry),
            ("HGET", consumer.attempts(priority), entry),
            ("HGETALL", scope.keys.runs(held_task.id, held_task.group)),
        ]
    )
    scope.note_server_time(int(time_now[0]) + int(time_now[1]) / 1e6)
    token = str(held_task.token)
    if by_hand.token_of(record) != token:
        return None
    stored = entries if isinstance(entries, list) and entries else [(entry.encode(), [])]
    (task,) = consumer.decoded(stored, priority, int(text(record).partition(" ")[0]))
    # The attempt was already counted by `take`.
    task.uncounted, task.counted = 0, True
    consumer.token = token
    runs = attempts.decoded(attempts.newest(flat if isinstance(flat, list) else []), None)
    if runs and runs[-1].began is not None:
        consumer.since -= max(0.0, scope.server_now() - runs[-1].began)
    task.began = time.monotonic() - (scope.monotonic() - consumer.since)
    return consumer, task


def _repeated(
    runner: Runner | AsyncRunner, task_id: str, token: str, outcome: str, group: str
) -> Op[SettledTask]:
    """Return the result of an identical earlier call with this token. Raises `StaleToken`."""
    queue = Address(task_id).queue
    flat = yield Command("HGETALL", runner.scope.keys.runs(task_id, group))
    states = {"failed": "retrying", "retried": "retrying"}
    for stored in attempts.newest(flat):
        try:
            run: Any = orjson.loads(stored)
            before = (run["token"], run["asked"], run["attempt"], run["outcome"])
        except (ValueError, KeyError, TypeError):
            continue
        if before[:2] == (token, outcome):
            state = states.get(before[3], before[3])
            return SettledTask(task_id, queue, group, state, before[2], None, repeated=True)
    raise (yield from _stale(runner, task_id, token, group))


def _stale(runner: Runner | AsyncRunner, task_id: str, token: str, group: str) -> Op[StaleToken]:
    """Return the error for a token that no longer holds the task."""
    why = "no such task is known any more"
    try:
        state = yield from task_state.task(runner.scope, task_id, group, runner.policies)
    except NotFound:
        state = None
    if state is not None:
        until = "" if state.due is None else f" until {rfc3339(state.due)}"
        holder = state.worker if state.state == "running" else None
        agent = taker(holder)
        if agent is not None:
            why = f"{agent!r} has it, by hand{until}, with another token"
        elif holder is not None:
            why = f"{holder!r} has it"
        elif state.state == "retrying":
            why = f"it waits for its next attempt{until}"
        else:
            why = f"it is {state.state}"
    return StaleToken(
        f"the token {token} of the task {task_id!r} is stale: {why}",
        hint=f"see bus.task({task_id!r}); what was done for it may be done again",
        shell_hint=f"see 'agentbus task show {task_id}'; what was done for it may be done again",
    )
