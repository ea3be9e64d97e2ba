"""Fetches tasks of a queue for one consumer: new ones and retries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError
from agentbus.core.stream import position, text
from agentbus.queues.claimed import NotRun
from agentbus.queues.consumer import QueueConsumer
from agentbus.queues.ids import STREAMS
from agentbus.queues.limiting import ask, grant
from agentbus.store.failures import GroupMissing
from agentbus.store.steps import Script
from agentbus.workers.reclaim import Reclaimer

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.store.steps import Op
    from agentbus.workers.metrics import Tally

# Start of a new group: the oldest task, or after the newest.
FIRST, TAIL = "first", "tail"
# Every tenth fetch starts with the lowest priority, so that no priority starves.
_LOW_TURN = 10
_priority = attrgetter("priority")
# Maximum tasks per step that checks the order of keys.
_ENTER = 500


def at_tail(start: str) -> bool:
    """Return whether a new group starts after the newest tasks. Raises `UsageError`."""
    if start not in (FIRST, TAIL):
        raise UsageError(f"the start is {start!r}", hint=f"use {FIRST!r} or {TAIL!r}")
    return start == TAIL


class Fetcher:
    """Fetches tasks for one consumer, and decides whether each may start.

    Its methods return operations, which workers and `Queue.fetch` run. If it is `exact`, every attempt at a
    redelivered task is counted before it starts; if it `counts_all`, every first attempt is, too.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        reclaimer: Reclaimer,
        tally: Tally,
        *,
        attempts: int,
        tail: bool = False,
        exact: bool = False,
        counts_all: bool = False,
    ) -> None:
        self.consumer = consumer
        self.reclaimer = reclaimer
        self._tally = tally
        self._attempts = attempts
        self._tail = tail
        self._exact = exact
        self._counts_all = counts_all
        self._turn = 0
        self._unsure = True
        # Seconds until the next delayed task is due, as of the last check in `Queue.fetch`.
        self.due_in = math.inf
        # Number of deferred tasks taken so far.
        self.aside = 0

    def prepare(self) -> Op[None]:
        """Create the group if it is missing; a new group starts at the tail if requested."""
        if self._unsure or self.consumer.missing:
            yield from self.consumer.prepare(tail=self._tail)
            # If the group is lost later, start it at the oldest task, so that no task is skipped.
            self._unsure = self.consumer.missing = self._tail = False

    def new(
        self, count: int, done: dict[str, list[bytes]] | None = None, took: float = 0.0
    ) -> Op[tuple[int, list[Taken]]]:
        """Take new tasks without waiting, and acknowledge `done` ones in the same atomic step.

        `took` is the total seconds of the done tasks. Returns the number of stale ones among them, and the
        new tasks.
        """
        yield from self.prepare()
        self._turn += 1
        low = 1 if self._turn % _LOW_TURN == 0 else 0
        stale, taken = yield from self.consumer.ack_and_take(done or {}, took, count, low)
        return len(stale), self._received(taken)

    def new_when_done(
        self, count: int, done: dict[str, list[bytes]], took: float
    ) -> Op[tuple[int, list[Taken]]]:
        """Take new tasks like `new`, from all priorities alike, when all held tasks are done."""
        yield from self.prepare()
        if self.reclaimer.certain():
            stale, taken = yield from self.consumer.turn_all_done(done, took, count)
        else:
            stale, taken = yield from self.consumer.ack_and_take(done, took, count)
        return len(stale), self._received(taken)

    def ahead(
        self,
        count: int,
        done: dict[str, list[bytes]],
        took: float,
        batch: list[Taken],
        meanwhile: Callable[[], None],
    ) -> Op[tuple[int, list[Taken]]]:
        """Take new tasks like `new`; `meanwhile` runs a batch while the server responds."""
        yield from self.prepare()
        holds: dict[str, int] | None = None
        if self.reclaimer.certain():
            holds = {priority: len(ids) for priority, ids in done.items()}
            for priority, number in Counter(map(_priority, batch)).items():
                holds[priority] = holds.get(priority, 0) + number
        stale, taken = yield from self.consumer.turn_ahead(done, took, count, holds, meanwhile)
        return len(stale), self._received(taken)

    def wait(self, count: int, seconds: float) -> Op[list[Taken]]:
        """Wait up to `seconds` for new tasks; the server applies `count` to each priority."""
        yield from self.prepare()
        soonest = min(self.consumer.due.values()) - self.consumer.scope.monotonic()
        wait = max(0.001, min(seconds, soonest))
        taken = yield from self.consumer.unless_missing(self.consumer.take(count, wait), [])
        return self._received(taken)

    def listen(self, count: int, seconds: float) -> Op[tuple[list[Taken], list[bytes], int]]:
        """Wait up to `seconds` for new tasks, or for entries of the queue's bell; see `QueueConsumer`."""
        yield from self.prepare()
        op = self.consumer.listen(count, seconds)
        taken, rings, orders = yield from self.consumer.unless_missing(op, ([], [], 0))
        return self._received(taken), rings, orders

    def _received(self, taken: list[Taken]) -> list[Taken]:
        if taken:
            self._tally.note("received", len(taken))
            # Use the age of the middle task for all.
            age = self._tally.age(taken[len(taken) // 2].entry_id)
            self._tally.count_waits(len(taken), age)
        return taken

    def retries(
        self, count: int, firsts: int = 0, *, suspects: bool = True
    ) -> Op[tuple[list[Taken], bool]]:
        """Take deferred tasks that are due, at most `firsts` of them without a counted attempt.

        Also returns whether it is a single suspect, which must run alone; if `suspects` is False, none is
        taken.
        """
        taken: list[Taken] = []
        scope, due = self.consumer.scope, self.consumer.due
        if self.consumer.limit is not None and (
            yield from self.consumer.unless_missing(grant(self.consumer), 0)
        ):
            self.look_again()
        alone = False
        # Read the time first: another worker may schedule a retry during the loop.
        now, longest = scope.monotonic(), scope.intervals.look
        for priority in STREAMS:
            if count > len(taken) and due[priority] <= now:
                # A suspect must be held alone.
                wanted = suspects and not taken
                try:
                    tasks, next_due, lost, alone = yield from self.consumer.take_retries(
                        priority, count - len(taken), firsts=firsts, suspects=wanted
                    )
                except GroupMissing:
                    self.consumer.missing = True
                    continue
                if lost:
                    self._tally.note("lost", lost)
                if self.consumer.overdue:
                    self._tally.note("reclaimed", self.consumer.overdue)
                    self.consumer.overdue = 0
                left = longest if next_due is None else next_due
                due[priority] = 0.0 if taken else now + min(max(left, 0.0), longest)
                taken += tasks
                if alone:
                    break
        self.aside += len(taken)
        if taken:
            self._tally.note("received", len(taken))
        return taken, alone

    def look_again(self) -> None:
        """Make the next fetch check for due retries."""
        for priority in STREAMS:
            self.consumer.due[priority] = 0.0

    def admit(self, task: Taken) -> Op[bool]:
        """Return whether a task may start; if not, settle or defer it.

        Counts the attempt of a redelivered task before it starts. A task with an ordering key waits for
        earlier ones. A duplicate that another program published is acknowledged without a run.
        """
        consumer = self.consumer
        if task.claims and not (yield from consumer.unless_missing(consumer.claim(task), 1)):
            yield from consumer.unless_missing(consumer.finish(task, 0.0), False)
            self._tally.note("duplicates")
            return False
        if task.ordered:
            (code,) = yield from consumer.unless_missing(consumer.start_ordered([task]), [-1])
            if code != 1:
                self.put_aside()
                return False
        if consumer.limit is not None:
            code = yield from consumer.unless_missing(ask(consumer, task), -1)
            if code != 1:
                self.put_aside()
                return False
        if not self.counts(task):
            return True
        begin = consumer.begin(task, task.uncounted or 0)
        task.attempt = yield from consumer.unless_missing(begin, 0)
        task.counted = True
        limit = task.limit(self._attempts)
        if task.attempt <= limit:
            return task.attempt > 0
        task.attempt = limit
        within = "its only attempt" if limit == 1 else f"any of its {limit} attempts"
        why = NotRun(f"it was not acknowledged in {within}")
        yield from self.bury(task, why)
        return False

    def bury(self, task: Taken, why: BaseException | str) -> Op[None]:
        """Dead-letter a task without a run, and count it."""
        # Call the base class: a consumer of fetched tasks would count this as a failed run.
        op = QueueConsumer.bury(self.consumer, task, why)
        buried = yield from self.consumer.unless_missing(op, False)
        self._tally.note("dead" if buried else "stale")

    def enter_orders(self, tasks: Sequence[Taken], *, chained: bool) -> Op[list[Taken]]:
        """Return the tasks that may start, and defer those that wait for their ordering key.

        If they are `chained`, they run one after the other, and a failure stops the tasks of its key.
        """
        consumer = self.consumer
        places: dict[tuple[str, str], list[Taken]] = {}
        for task in tasks:
            if task.ordered:
                places.setdefault((task.priority, task.tier), []).append(task)
        kept: set[int] = set()
        for some in places.values():
            some.sort(key=lambda task: position(text(task.entry_id)))
            for at in range(0, len(some), _ENTER):
                page = some[at : at + _ENTER]
                starts = consumer.start_ordered(page, chained=chained)
                codes = yield from consumer.unless_missing(starts, [-1] * len(page))
                kept.update(id(task) for task, code in zip(page, codes, strict=True) if code == 1)
        entered = [task for task in tasks if not task.ordered or id(task) in kept]
        self.put_aside(len(tasks) - len(entered))
        return entered

    def put_aside(self, number: int = 1) -> None:
        """Count tasks that were received but not run."""
        if number:
            self._tally.note("released", number)

    def apart(self, task: Taken) -> bool:
        """Return whether the server must be asked about a task separately before it starts."""
        return self.consumer.limit is not None or task.claims or self.counts(task)

    def counts(self, task: Taken) -> bool:
        """Return whether an attempt must be counted before it starts."""
        if self._counts_all or task.only_once or (task.redelivered and not task.attempt):
            return True
        # Otherwise the attempt counts if its worker dies; it must not make a task dead that had not
        # started.
        last = task.attempt + 1 > task.limit(self._attempts)
        return task.redelivered and (self._exact or last)

    def expects_tasks(self) -> Op[bool]:
        """Return whether the group has tasks to run, tasks held by any consumer, or retries that are due.

        Tasks that are not due yet, or wait for others, do not count.
        """
        consumer = self.consumer
        keys = consumer.scope.keys
        done: int = yield Script(
            "check_drained",
            (
                *(keys.settled, keys.after(consumer.queue), keys.delayed(consumer.queue)),
                *consumer.streams.values(),
                *map(consumer.retries, consumer.streams),
            ),
            (consumer.group,),
        )
        return not done
