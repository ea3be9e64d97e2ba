"""Settles tasks that a worker has run: ack, retry, dead letter."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.core import envelope
from agentbus.core.errors import InvalidPayload
from agentbus.queues import attempt_log
from agentbus.queues.claimed import NotRun, Taken
from agentbus.queues.consumer import FinishedRun
from agentbus.queues.dependents import queue_of
from agentbus.queues.retry import Snooze
from agentbus.queues.settle import FailedRun
from agentbus.workers.batch import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agentbus.queues.consumer import QueueConsumer
    from agentbus.queues.retry import Backoff
    from agentbus.store.steps import Op
    from agentbus.workers.metrics import Tally

    Done = dict[str, list[bytes]]

T = TypeVar("T")
_priority = attrgetter("priority")

# Maximum results, and bytes of results, per step.
_AT_ONCE, _BYTES = 500, 1 << 20
# Maximum retries per step.
_RETRIES = 100


class Acker:
    """Settles one worker's tasks: acknowledges, retries or dead-letters them."""

    def __init__(
        self,
        consumer: QueueConsumer,
        run: Callable[[Op[Any]], Any],
        tally: Tally,
        *,
        attempts: int,
        backoffs: tuple[Backoff, Mapping[str, Backoff]],
    ) -> None:
        self._consumer = consumer
        self._run = run
        self._attempts = attempts
        self._backoff, self._by_task = backoffs
        self.tally = tally
        self.done = 0
        self.failed = 0
        # Several threads of a worker update the counts.
        self._counting = threading.Lock()

    def plain(self, outcomes: Iterable[TaskOutcome | Taken]) -> Done:
        """Settle the tasks that need more than an ack, and return the ids of the rest by priority."""
        ids: Done = {}
        with_result: list[TaskOutcome] = []
        failures: list[FailedRun] = []
        unstarted: list[Taken] = []
        acked, stopping, log = 0, self._consumer.stopping, self._consumer.log
        plain: list[Taken] | None = None if log is None else []
        for outcome in outcomes:
            # Common case: the task is done and has no result.
            if isinstance(outcome, Taken):
                task = outcome
                if (task.meta or task.uncounted is not None) and task.alone:
                    if self._in_batch(task):
                        with_result.append(TaskOutcome(task))
                    else:
                        self.settle(TaskOutcome(task))
                    continue
            else:
                task = outcome.task
                if outcome.settled:
                    acked += outcome.acked
                    continue
                if task.alone or not outcome.plain:
                    if outcome.error is None and outcome.begun and self._in_batch(task):
                        with_result.append(outcome)
                    elif not (outcome.begun or task.place in stopping):
                        unstarted.append(task)
                    elif outcome.error is not None and outcome.begun:
                        failures += self._settle_failed(outcome)
                    else:
                        self.settle(outcome)
                    continue
            try:
                ids[task.priority].append(task.entry_id)
            except KeyError:
                ids[task.priority] = [task.entry_id]
            if plain is not None:
                plain.append(task)
        if log is not None and plain:
            log.remember(plain)
        if acked:
            self.count(acked)
        if with_result:
            failures += self._finish(with_result, ids)
        self._retry(failures)
        self.give_back(unstarted)
        return ids

    def _in_batch(self, task: Taken) -> bool:
        """Return whether a done task can be acknowledged together with others, including its result."""
        if task.claims or task.only_once or task.tells or task.moved_from is not None:
            return False
        # Without a stored result, the entry's id marks the task as done, but a delayed task has a
        # different id.
        return bool(self._consumer.kept) or "id" not in task.meta

    def _finish(self, outcomes: list[TaskOutcome], plain: Done) -> list[FailedRun]:
        """Acknowledge tasks with their results, many per step; add those that need no step to `plain`.

        Returns the tasks with invalid results, which are retried.
        """
        runs_by_kind: dict[tuple[str, bool, str], list[FinishedRun]] = {}
        failures: list[FailedRun] = []
        for outcome in outcomes:
            task, data = outcome.task, b""
            try:
                # Store even the null result of a delayed task, since its id does not name its
                # entry.
                if outcome.result is not None:
                    data = envelope.encode(outcome.result, self._consumer.scope.max_body)
                elif "id" in task.meta:
                    data = b"null"
            except InvalidPayload as error:
                # Nothing was sent: treat an invalid result as any other failure.
                outcome.fail(error)
                failures += self._settle_failed(outcome)
                continue
            if not self._consumer.kept:
                data = b""
            if not (data or task.redelivered or task.ordered):
                plain.setdefault(task.priority, []).append(task.entry_id)
                if self._consumer.log is not None:
                    self._consumer.log.remember([task])
                continue
            # The dependents of a routed task belong to the queue from which it was moved.
            origin = queue_of(str(task.meta["id"])) if "id" in task.meta else self._consumer.queue
            kind = task.priority, task.redelivered, origin
            runs_by_kind.setdefault(kind, []).append(FinishedRun(task, data, outcome.took))
        for (priority, _, _), results in runs_by_kind.items():
            results.sort(key=lambda result: order(result.task.entry_id))
            for page in _pages(results):
                finish = self._consumer.finish_many(priority, page)
                stale = self._ours(finish, otherwise=len(page))
                self.count(len(page), stale)
        return failures

    def ack(self, done: Done, took: float) -> None:
        """Acknowledge tasks, whose handlers took `took` seconds in total."""
        for ids in done.values():
            ids.sort(key=order)
        stale, _ = self._run(self._consumer.ack_and_take(done, took, 0))
        self.count(sum(map(len, done.values())), len(stale))

    def count(self, number: int, stale: int = 0) -> None:
        """Count acknowledged tasks; `stale` of them no longer belonged to this consumer."""
        done = number - stale
        with self._counting:
            self.done += done
        if done:
            self.tally.note("processed", done)
        if stale:
            self.tally.note("stale", stale)

    def settle(self, outcome: TaskOutcome) -> None:
        task = outcome.task
        if not outcome.begun:
            self.release(task)
            return
        if outcome.settled:
            self.count(int(outcome.acked))
        elif outcome.error is None:
            try:
                finish = self._consumer.finish(task, outcome.took, outcome.result)
                self.count(1, int(not self._ours(finish, otherwise=False)))
            except InvalidPayload as error:
                # Nothing was sent: treat an invalid result as any other failure.
                outcome.fail(error)
                self._retry(self._settle_failed(outcome))
        else:
            self._retry(self._settle_failed(outcome))

    def _settle_failed(self, outcome: TaskOutcome) -> list[FailedRun]:
        """Settle a failed task, or return it if it is to be retried."""
        task, error = outcome.task, outcome.error
        assert error is not None
        if isinstance(error, Snooze):
            snooze = self._consumer.snooze(task, error.after)
            self.tally.note("retried" if self._ours(snooze, otherwise=False) else "stale")
            return []
        if not isinstance(error, NotRun):
            with self._counting:
                self.failed += 1
            self.tally.note("failed")
        if isinstance(error, BaseException) and attempt_log.is_heard("warning"):
            of = self._consumer.queue, self._consumer.group, self._consumer.id_of(task)
            attempt_log.emit(self._consumer.scope, of, "warning", task, error)
        took = outcome.took
        if task.place in self._consumer.stopping:
            drop = self._consumer.drop(task, error, took=took, ran=True)
            self.tally.note("cancelled" if self._ours(drop, otherwise=False) else "stale")
            return []
        backoff = self._backoff
        if self._by_task:
            backoff = self._by_task.get(task.meta.get("task", ""), backoff)
        after = backoff.after(task.attempt) if outcome.after is None else outcome.after
        limit = task.limit(self._attempts)
        last = task.attempt >= limit
        # The task would expire before its next attempt, and this error would be lost.
        if outcome.bury or last or task.expired(self._consumer.scope.server_now() + after):
            buried = self._ours(self._consumer.bury(task, error, took=took), otherwise=False)
            self.tally.note("dead" if buried else "stale")
            return []
        # If a worker dies, an attempt that is not counted beforehand counts even if it never
        # started. It must not be the attempt that makes the task dead.
        exact = task.only_once or task.attempt + 2 > limit
        return [FailedRun(task, after, error, took, exact=exact)]

    def _retry(self, failures: list[FailedRun]) -> None:
        """Defer failed tasks, many per step."""
        by_priority: dict[str, list[FailedRun]] = {}
        for failure in failures:
            by_priority.setdefault(failure.task.priority, []).append(failure)
        for some in by_priority.values():
            some.sort(key=lambda failure: order(failure.task.entry_id))
            for at in range(0, len(some), _RETRIES):
                page = some[at : at + _RETRIES]
                retry = self._consumer.retry_many(page)
                for ours in self._ours(retry, otherwise=[False] * len(page)):
                    self.tally.note("retried" if ours else "stale")

    def release(self, task: Taken) -> None:
        """Return an unstarted task to its queue, due at once for any worker."""
        self._ours(self._consumer.release(task), otherwise=False)
        self.tally.note("released")

    def give_back(self, tasks: list[Taken], *, received: bool = True) -> None:
        """Return unstarted tasks to their queue, without counting an attempt.

        Tasks of lost replies were never counted as `received`.
        """
        if tasks:
            self._ours(self._consumer.give_back(tasks), otherwise=0)
            if received:
                self.tally.note("released", len(tasks))

    def still_ours(self, tasks: list[Taken]) -> list[Taken]:
        """Send a heartbeat for tasks, and return those that had not been reclaimed before."""
        ids: Done = {}
        for task in tasks:
            ids.setdefault(task.priority, []).append(task.entry_id)
        gone = {
            (priority, entry_id)
            for priority, entry_ids in ids.items()
            for entry_id in self._ours(
                self._consumer.heartbeat(priority, sorted(entry_ids, key=order)),
                otherwise=entry_ids,
            )
        }
        return [task for task in tasks if (task.priority, task.entry_id) not in gone]

    def _ours(self, op: Op[T], *, otherwise: T) -> T:
        reply: T = self._run(self._consumer.unless_missing(op, otherwise))
        return reply


def _pages(results: list[FinishedRun]) -> Iterator[list[FinishedRun]]:
    """Divide results into pages, so that no step blocks the server for long."""
    page: list[FinishedRun] = []
    size = 0
    for result in results:
        if page and (len(page) == _AT_ONCE or size + len(result.data) > _BYTES):
            yield page
            page, size = [], 0
        page.append(result)
        size += len(result.data)
    yield page


def acks(tasks: Sequence[Any]) -> Done:
    """Return the ids of tasks that need only an ack, by priority."""
    ids: Done = {}
    for priority in {*map(_priority, tasks)}:
        ids[priority] = [task.entry_id for task in tasks if task.priority == priority]
    return ids


def order(entry_id: bytes) -> tuple[int, int]:
    """Return the sort key of an entry id."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
