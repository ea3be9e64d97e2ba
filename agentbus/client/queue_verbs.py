"""The queue verbs of a bus: queues, policies, requests, results, tasks, and tasks held by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from agentbus.client.queue import AsyncQueue, Queue
from agentbus.queues import amend, ask, cancel, janitor, publish, results, task_state
from agentbus.queues.ask import result_of
from agentbus.store.verb import Awaiting, Patient, verb
from agentbus.workers import fetch
from agentbus.workers.registry import or_no_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.core.envelope import Envelope
    from agentbus.core.settings import Settings
    from agentbus.queues.ask import Answer
    from agentbus.queues.by_hand import AsyncTakenTask, HeldTask, SettledTask, TakenTask
    from agentbus.queues.cancel import Cancelled
    from agentbus.queues.janitor import Tidied
    from agentbus.queues.policy import Policy
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.queues.task_state import TaskState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.store.verb import PerBus

_FOR_EVER = float("inf")


class QueueVerbs:
    """The queue verbs of both kinds of bus."""

    scope: Scope
    settings: Settings
    if TYPE_CHECKING:
        runner: Runner | AsyncRunner
        at: Callable[[str], Self]

    def queue(self, name: str, *, bound: int | None = None) -> Queue[Self]:
        """Return a queue of this project; nothing is stored before its first task.

        `bound` is the maximum number of unfinished tasks of each priority; by default the policy's.
        """
        kind: type[Queue[Any]] = AsyncQueue if isinstance(self, Awaiting) else Queue
        return kind(self.at(name), name, bound=bound)

    def policy(self, queue: str) -> Policy:
        """Return the configured policy of a queue, with defaults filled in, without a server request.

        Raises `ConfigError` if any policy in the configuration is invalid.
        """
        return self.runner.policy(queue)

    @verb
    def ask(
        self,
        /,
        queue: str,
        payload: object,
        timeout: float | None = 30,
        **envelope: Unpack[Envelope],
    ) -> Patient[Any]:
        """Publish a task, wait until it is done, and return its handler's result.

        `timeout` is in seconds, 0 or None for no limit; after the timeout, the task stays in the queue.
        `envelope` is like that of `Queue.publish`, without `key` and `reply_to`. Raises `TaskFailed` if the
        task becomes dead, `TimedOut`, `QueueFull`.
        """
        op = self._asked(queue, payload, timeout, envelope)
        return Patient(result_of(op), timeout or _FOR_EVER)

    @verb
    def answer(
        self,
        /,
        queue: str,
        payload: object,
        timeout: float | None = 30,
        **envelope: Unpack[Envelope],
    ) -> Patient[Answer]:
        """Publish a task like `ask`, and return an `Answer`: the task's `id` and its `result`."""
        return Patient(self._asked(queue, payload, timeout, envelope), timeout or _FOR_EVER)

    def _asked(
        self, queue: str, payload: object, timeout: float | None, envelope: Envelope
    ) -> Op[Answer]:
        policy = self.policy(queue)
        op = ask.ask(self.scope, queue, payload, timeout, {**envelope}, policy)
        op = or_no_worker(self.scope, op, queue=queue)
        return publish.confirmed(op, self.runner, policy, None, None)

    @verb
    def result(
        self, task_id: str, wait: float | None = None, *, group: str | None = None
    ) -> Patient[Any]:
        """Return the result of a task (None if it has none), waiting at most `wait` seconds for it.

        `group` selects the consumer group whose result is read: by default `default`, or the only existing
        group. Raises `TaskBuried`, `NotFound`, `TimedOut`.
        """
        op = results.result(self.scope, task_id, wait, group, self.runner.policies)
        return Patient(or_no_worker(self.scope, op, task=task_id), wait or 0.0)

    @verb
    def task(self, task_id: str, *, group: str | None = None) -> Op[TaskState]:
        """Return the state of a task: its attempts, errors and workers, and its dependencies.

        `group` selects the consumer group: by default `default`, or the only existing group. Raises
        `NotFound` for a task that is unknown, or has ended and is no longer recorded.
        """
        return task_state.logged(self.scope, task_id, group, self.runner.policies)

    @verb
    def cancel(self, task_id: str) -> Op[Cancelled]:
        """Cancel a task: no further attempt begins, and its dependents become dead.

        A worker that holds it is asked to stop it: it ends a program, interrupts a coroutine, or sets
        `Delivery.cancelled` for a function; a run that nevertheless succeeds is done. A second call changes
        nothing. `result` and `ask` raise `TaskCancelled`. Raises `NotFound`, and `Refused` for a task that
        has ended.
        """
        return cancel.cancel(self.scope, task_id, self.runner.policies)

    @verb
    def set_task(
        self,
        task_id: str,
        *,
        priority: str | None = None,
        at: float | None = None,
        now: bool = False,
        group: str | None = None,
    ) -> Op[TaskState]:
        """Change the priority or due time of a task that no worker has taken, and return its state.

        The task must be delayed, or wait for other tasks or for its next attempt; in the last case its
        priority cannot be changed. `at` is in unix seconds; `now` makes it due at once, or when its
        dependencies are done. Atomic. Raises `NotFound`, and `Refused` for a task in another state.
        """
        policies = self.runner.policies
        return amend.amend(
            self.scope, task_id, priority=priority, at=at, now=now, group=group, policies=policies
        )

    @verb
    def take(
        self,
        queue: str,
        *,
        group: str = "default",
        wait: float | None = None,
        visibility: float = 1800,
    ) -> Patient[PerBus[TakenTask, AsyncTakenTask]]:
        """Take a task for this agent, and hold it for `visibility` seconds, even if this process ends.

        The task is taken like by `Queue.fetch`, and its attempt is counted. Settle it by its methods, or
        from another process with `settle` and its `token`; after the visibility, any consumer may take it.
        Waits up to `wait` seconds for a task. Raises `NotFound` if none is ready or the queue does not
        exist, and `TimedOut` after `wait`.
        """
        op: Op[Any] = fetch.take(self.runner, queue, group=group, wait=wait, visibility=visibility)
        return Patient(op, wait or 0.0)

    @verb
    def settle(
        self,
        task_id: str,
        token: str | int,
        outcome: str = "done",
        *,
        result: object = None,
        error: str | None = None,
        after: float | None = None,
        group: str = "default",
    ) -> Op[SettledTask]:
        """Settle a task taken by hand: `outcome` is "done", "retry" or "bury".

        A done task keeps its `result`. A retry is due after `after` seconds, by default after the queue's
        backoff; after the last attempt, the task becomes dead, as with a worker. `error` is the reason of
        the failure; "bury" requires it. Idempotent: a second call with the same token and outcome changes
        nothing, for 24 hours. Raises `StaleToken` if the task is no longer held with this token.
        """
        return fetch.settle(
            self.runner,
            task_id,
            token,
            outcome,
            result=result,
            error=error,
            after=after,
            group=group,
        )

    @verb
    def renew(
        self,
        task_id: str,
        token: str | int,
        visibility: float = 1800,
        *,
        group: str = "default",
    ) -> Op[HeldTask]:
        """Hold a task taken by hand until `visibility` seconds from now.

        Raises `StaleToken` if it is no longer held with this token, and `Refused` if it was cancelled.
        """
        return fetch.renew(self.runner, task_id, token, visibility, group=group)

    @verb
    def tidy(self, queue: str | None = None, *, dry_run: bool = False) -> Op[list[Tidied]]:
        """Clean up one or all queues: trim old finished tasks, delete dead consumers and stale keys.

        Returns the numbers removed from each queue, or with `dry_run` the removable ones. Workers do this
        periodically. Raises `NotFound`.
        """
        return janitor.tidy(self.scope, queue, self.runner.policies, dry_run=dry_run)
