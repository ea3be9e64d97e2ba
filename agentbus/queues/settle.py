"""Settles claimed tasks: start, ack, retry, dead-letter."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agentbus.core import envelope, names
from agentbus.core.clock import rfc3339
from agentbus.core.stream import text
from agentbus.queues import attempt_log, attempts
from agentbus.queues.attempt_log import CANCELLED, DEAD, RETRIED, SNOOZED, EndedAttempt
from agentbus.queues.attempts import RUNS_KEPT
from agentbus.queues.claimed import Taken, error_text, said
from agentbus.queues.dependents import passed_on, queue_of
from agentbus.queues.ids import (
    ASIDE,
    DEDUP_WINDOW,
    RESULT_KEPT,
    RETRY,
    task_id,
)
from agentbus.queues.notify import notifications
from agentbus.queues.ordering import Ordering
from agentbus.store.failures import GroupMissing
from agentbus.store.steps import Command, Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.store.steps import Arg, Once, Op

T = TypeVar("T")

# Reply of a settling script for a task with dependents.
_AWAITED = 2
# Reply of the script `retry` for a cancelled task.
_CANCELLED = 2


class FailedRun(NamedTuple):
    """A task to defer for `after` seconds; if it `ran`, it took `took` seconds and failed with `error`.

    The next attempt of an `exact` task is counted before it starts.
    """

    task: Taken
    after: float
    error: BaseException | str | None = None
    took: float = 0.0
    ran: bool = True
    exact: bool = True


def _without_attempt(task: Taken) -> Taken:
    """Return a task as before its attempt was counted."""
    again = copy(task)
    again.snoozed = task.attempt
    again.attempt = max(0, task.attempt - 1) if task.redelivered else 0
    return again


def _put_aside(run: FailedRun) -> EndedAttempt:
    snoozed = hasattr(run.task, "snoozed")
    return EndedAttempt(run.task, SNOOZED if snoozed else RETRIED, run.error)


class _Logged(NamedTuple):
    """The key of the attempt log, if there is one, and the words to append."""

    keys: tuple[str, ...]
    words: tuple[Arg, ...]


_NOTHING = _Logged((), ())


class Ending(Ordering):
    """One consumer of one group of one queue: the operations on tasks that it holds."""

    def claim(self, task: Taken, *, keep: bool = True) -> Op[int]:
        """Claim the work item ids of a raw task; 0 if another task claimed one within the dedup window.

        A redelivered task keeps its claims. If `keep` is False, they are removed.
        """
        keys, meta, claims = self.scope.keys, task.meta, []
        if envelope.WORK_ITEM in meta:
            claims.append(keys.seen(self.queue, str(meta[envelope.WORK_ITEM])))
        if envelope.INBOX in meta:
            claims.append(keys.seen_inbox(self.queue, str(meta[envelope.INBOX])))
        claimed: int = yield Script(
            "claim_task_ids",
            claims,
            (self.id_of(task), DEDUP_WINDOW if keep else 0),
            writes=True,
        )
        return claimed

    def begin(self, task: Taken, uncounted: int = 1) -> Op[int]:
        """Count an attempt before it starts; return 0 if this consumer no longer holds the task.

        `uncounted` is the number of earlier uncounted attempts, used if none was counted yet. A cancelled
        task is settled as cancelled, and the number is also 0.
        """
        keys = (
            *(self.streams[task.priority], self.attempts(task.priority)),
            *(self.cancelled, self.scope.keys.runs(self.id_of(task), self.group)),
        )
        number: int = yield self._script(
            *(
                "begin_attempt",
                keys,
                task.entry_id,
                uncounted,
                self.scope.token(),
                int(task.only_once),
            ),
            *(self._mark(task), RUNS_KEPT, attempts.who(self.consumer, self.scope.agent)),
        )
        if number < 0:
            yield from self.drop(task)
        return max(0, number)

    def finish(self, task: Taken, took: float, result: object = None) -> Op[bool]:
        """Acknowledge a task, with its result if any; return whether this consumer still held the task.

        The task's reply and webhook are appended in the same atomic step.
        """
        data: bytes = b""
        if result is not None:
            data = envelope.encode(result, self.scope.max_body)
        elif "id" in task.meta:
            # A delayed task's id does not name its entry, so its outcome must be stored.
            data = b"null"
        name = self.id_of(task)
        others = notifications(self.scope, self.queue, self.group, name, task.meta, result=data)
        if self.log is not None:
            self.log.aboard(others, EndedAttempt(task))
        once = self.scope.once()
        keys = (
            *(self.streams[task.priority], self.stats, self.attempts(task.priority)),
            *(self.scope.keys.result(name, self.group), *self._noting(name)),
            *(once.key, self.scope.keys.runs(name, self.group)),
            *(self.retries(task.priority), *others.keys),
        )
        # Do not record a first run that succeeds: that would cost a request per task.
        record = self._run(task, "done") if task.redelivered else b""
        step = self._script(
            *("finish", keys, task.entry_id, round(took * 1000), data if self.kept else b""),
            *(self.kept, others.counter, name, once.token, RUNS_KEPT, record, *others.argv),
        )
        return (yield from self._settle(task, step, once))

    def retry(
        self,
        task: Taken,
        after: float,
        *,
        error: BaseException | str | None = None,
        took: float = 0.0,
        ran: bool = True,
    ) -> Op[bool]:
        """Defer a task for `after` seconds; return whether this consumer still held it.

        If the task `ran`, for `took` seconds, that is recorded with the error. A task that has been
        cancelled is settled as cancelled.
        """
        (ours,) = yield from self.retry_many([FailedRun(task, after, error, took, ran)])
        return ours

    def snooze(self, task: Taken, after: float) -> Op[bool]:
        """Defer a task like `retry`, without counting the attempt that has begun."""
        return self.retry(_without_attempt(task), after, ran=False)

    def release(self, task: Taken) -> Op[bool]:
        """Defer an unstarted task, due at once, without counting its attempt."""
        (ours,) = yield from self.retry_many([FailedRun(_without_attempt(task), 0.0, ran=False)])
        return ours

    def retry_many(self, failures: Sequence[FailedRun]) -> Op[list[bool]]:
        """Defer tasks of one priority, entries ascending; return for each whether it was still held.

        Atomic, except for cancelled tasks, each of which is settled separately.
        """
        once, priority = self.scope.once(), failures[0].task.priority
        names_of = (self.id_of(run.task) for run in failures)
        log = self._log([_put_aside(run) for run in failures])
        step = self._script(
            "retry",
            (
                *(self.streams[priority], self.stats, self.attempts(priority)),
                *(self.retries(priority), once.key, self.cancelled),
                *(self.scope.keys.runs(name, self.group) for name in names_of),
                *log.keys,
            ),
            *(ASIDE, once.token, len(failures)),
            *(word for run in failures for word in self._aside(run)),
            *log.words,
        )
        reply = yield step
        self.scope.free_slot(once, step)
        held = []
        for run, code in zip(failures, reply, strict=True):
            if code == _CANCELLED:
                held.append((yield from self.drop(run.task, run.error, took=run.took, ran=run.ran)))
                continue
            held.append(code == 1)
            if code:
                self.look_within(priority, run.after)
        return held

    def _aside(self, run: FailedRun) -> tuple[Arg, ...]:
        task = run.task
        # The script `begin` reads a number without a token as an attempt that may not have begun.
        begun = f"{task.attempt} -" if task.attempt and run.exact else task.attempt
        outcome = "retried" if run.error is None else "failed"
        record = b""
        if run.ran and task.attempt:
            record = self._run(task, outcome, run.error, after=run.after)
        return (
            *(task.entry_id, round(run.after * 1000), begun, self._mark(task)),
            *(RUNS_KEPT + math.ceil(run.after), record, round(run.took * 1000)),
        )

    def look_within(self, priority: str, seconds: float) -> None:
        """Check for deferred tasks after this time at the latest."""
        self.due[priority] = min(self.due[priority], self.scope.monotonic() + seconds)

    def unless_missing(self, op: Op[T], otherwise: T) -> Op[T]:
        """Run an operation; return `otherwise` if the group does not exist."""
        try:
            return (yield from op)
        except GroupMissing:
            self.missing = True
            return otherwise

    def drop(
        self,
        task: Taken,
        error: BaseException | str | None = None,
        *,
        took: float = 0.0,
        ran: bool = False,
    ) -> Op[bool]:
        """Settle a cancelled task; return whether this consumer still held it.

        The task's reply and webhook are appended in the same atomic step.
        """
        by = yield Command("HGET", self.cancelled, self._mark(task))
        why = attempts.cancelled_by(text(by or b""))
        name = self.id_of(task)
        others = notifications(
            *(self.scope, self.queue, self.group, name, task.meta), error=why, cancelled=True
        )
        if self.log is not None:
            self.log.aboard(others, EndedAttempt(task, CANCELLED, error))
        once = self.scope.once()
        keys = (
            *(self.streams[task.priority], self.stats, self.attempts(task.priority)),
            *(self.retries(task.priority), self.scope.keys.result(name, self.group)),
            *(*self._noting(name), once.key, self.cancelled),
            *(self.scope.keys.runs(name, self.group), *others.keys),
        )
        record = self._run(task, "cancelled", error) if ran and task.attempt else b""
        step = self._script(
            *(
                "settle_cancelled",
                keys,
                task.entry_id,
                why,
                max(self.kept, RESULT_KEPT),
                others.counter,
                name,
            ),
            *(once.token, self._mark(task), RUNS_KEPT, record, round(took * 1000), *others.argv),
        )
        self.stopping.discard(task.place)
        return (yield from self._settle(task, step, once))

    def bury(self, task: Taken, error: BaseException | str, *, took: float = 0.0) -> Op[bool]:
        """Move a task to the dead letters; return whether this consumer still held it.

        The task's reply and webhook are appended in the same atomic step.
        """
        why, trace = error_text(error)
        name = self.id_of(task)
        others = notifications(self.scope, self.queue, self.group, name, task.meta, error=why)
        if self.log is not None:
            self.log.aboard(others, EndedAttempt(task, DEAD, error))
        words = (
            *("queue", self.queue, "group", self.group, "priority", task.tier),
            *("original_id", task.entry_id, "task_id", name),
            *("attempts", task.attempt, "error", why, "traceback", trace),
            *("failed_at", rfc3339(self.scope.server_now(), milliseconds=True)),
        )
        once = self.scope.once()
        keys = (
            *(self.streams[task.priority], self.letters, self.stats),
            *(self.attempts(task.priority), self.retries(task.priority)),
            *(self.scope.keys.result(name, self.group), *self._noting(name)),
            *(once.key, self.scope.keys.runs(name, self.group), *others.keys),
        )
        step = self._script(
            *("bury", keys, task.entry_id, why, self._kept(name), others.counter, name, once.token),
            *(RUNS_KEPT, self._run(task, DEAD, why), round(took * 1000)),
            *(len(words), *words, *others.argv),
        )
        buried = yield from self._settle(task, step, once)
        if buried:
            attempt_log.emit(self.scope, (self.queue, self.group, name), "error", task, why)
        if buried and task.claims:
            # The work is not done, so release the claim: a replay or another task may take it.
            yield from self.claim(task, keep=False)
        return buried

    def _settle(self, task: Taken, step: Script, once: Once) -> Op[bool]:
        """Run the script that settles a task, then release its dependents and the next task of its key."""
        ended = yield step
        self.scope.free_slot(once, step)
        if ended == _AWAITED:
            yield from passed_on(self.scope)
        if ended and task.moved_from:
            index = self.scope.keys.moved(self.queue)
            field = f"{task.moved_from}\n{self.group}"
            yield Script("forget_moved_retry", (self.streams[RETRY], index), (field,), writes=True)
        if ended and task.ordered:
            yield from self.wake_ordered([task])
        return bool(ended)

    def _mark(self, task: Taken) -> str:
        """Return the task's field among the cancelled tasks of its queue."""
        return task_id(text(task.entry_id), self.queue, task.priority)

    def _run(
        self,
        task: Taken,
        outcome: str,
        error: BaseException | str | None = None,
        *,
        after: float | None = None,
    ) -> bytes:
        """Return the record of a run that has ended."""
        why = None if error is None else said(error)
        return attempts.record(
            *(task.attempt, self.consumer, self.scope.agent, outcome, why), after=after
        )

    def _log(self, attempts: Sequence[EndedAttempt]) -> _Logged:
        """Return the key and words by which a script logs attempts; empty without a log."""
        words = () if self.log is None else self.log.of(attempts)
        return _Logged((self.log.key,), words) if self.log is not None and words else _NOTHING

    def _kept(self, name: str) -> str:
        """Return the seconds for which a dead task is recorded; if routed, also the queue of its letter."""
        if queue_of(name) == self.queue:
            return str(self.kept)
        return f"{self.kept}@{names.escape(self.queue).replace(' ', '%20')}"

    def _noting(self, name: str) -> tuple[str, str]:
        """Return the keys of a task's dependents and of its recorded outcome."""
        # Use the queue in the task's id: a router may have moved the task here.
        keys = self.scope.keys
        return keys.awaited(queue_of(name)), keys.settled
