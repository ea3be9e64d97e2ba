"""The queue verbs of a bus: `queue`, `policy`, `ask`, `answer`, `result`, `task`, `cancel`, `tidy`."""

from __future__ import annotations

from agentbus.store.verb import Awaiting, Patient, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, Unpack

    from agentbus.client.queue import Queue
    from agentbus.core.envelope import Envelope
    from agentbus.core.settings import Settings
    from agentbus.queues.ask import Answer
    from agentbus.queues.cancel import Cancelled
    from agentbus.queues.janitor import Tidied
    from agentbus.queues.policy import Policy
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.queues.task_state import TaskState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

_FOR_EVER = float("inf")


class QueueVerbs:
    """The queue verbs of both kinds of bus."""

    scope: Scope
    settings: Settings
    if TYPE_CHECKING:
        runner: Runner | AsyncRunner

    def queue(self, name: str, *, bound: int | None = None) -> Queue[Self]:
        """Return a queue of this project; the server stores nothing before its first task.

        `bound` is the number of unfinished tasks that each priority holds; by default the policy's.
        """
        from agentbus.client.queue import AsyncQueue, Queue

        kind: type[Queue[Any]] = AsyncQueue if isinstance(self, Awaiting) else Queue
        return kind(self, name, bound=bound)

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
        """Publish a task, wait until it is done, and return what its handler returned.

        `timeout` is in seconds, 0 or None for no limit; after it the task stays in the queue. `envelope` is
        that of `Queue.publish`, without `key` and `reply_to`. Raises `TaskFailed` if the task is buried,
        `TimedOut`, `QueueFull`.
        """
        from agentbus.queues.ask import result_of

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
        """Publish a task as `ask` does, and return an `Answer`: the task's `id` and its `result`."""
        return Patient(self._asked(queue, payload, timeout, envelope), timeout or _FOR_EVER)

    def _asked(
        self, queue: str, payload: object, timeout: float | None, envelope: Envelope
    ) -> Op[Answer]:
        from agentbus.queues import ask

        return ask.ask(self.scope, queue, payload, timeout, {**envelope}, self.policy(queue))

    @verb
    def result(
        self, task_id: str, wait: float | None = None, *, group: str | None = None
    ) -> Patient[Any]:
        """Return the result of a task, None if it has none; wait for it at most `wait` seconds.

        `group` selects the consumer group whose result is read: by default `default`, or the only group
        that there is. Raises `TaskBuried`, `NotFound`, `TimedOut`.
        """
        from agentbus.queues import results

        op = results.result(self.scope, task_id, wait, group, self.runner.policies)
        return Patient(op, wait or 0.0)

    @verb
    def task(self, task_id: str, *, group: str | None = None) -> Op[TaskState]:
        """Return the state of a task: its attempts, errors and workers, and the tasks that it depends on.

        `group` selects the consumer group: by default `default`, or the only group that there is. Raises
        `NotFound` for a task that is unknown, or ended and is no longer recorded.
        """
        from agentbus.queues import task_state

        return task_state.task(self.scope, task_id, group, self.runner.policies)

    @verb
    def cancel(self, task_id: str) -> Op[Cancelled]:
        """Cancel a task: no attempt begins any more, and the tasks that wait for it are buried.

        A worker that holds it is asked to stop it: it ends a program, interrupts a coroutine, and sets
        `Delivery.cancelled` for a function; a run that ends successfully all the same is done. A second
        call changes nothing. `result` and `ask` raise `TaskCancelled`. Raises `NotFound`, and `Refused` for
        a task that has ended.
        """
        from agentbus.queues import cancel

        return cancel.cancel(self.scope, task_id, self.runner.policies)

    @verb
    def tidy(self, queue: str | None = None, *, dry_run: bool = False) -> Op[list[Tidied]]:
        """Clean up a queue, or all queues: trim old finished tasks, delete dead consumers and stale keys.

        Returns what was removed from each queue, or with `dry_run` what would be. Workers do this
        periodically. Raises `NotFound`.
        """
        from agentbus.queues import janitor

        return janitor.tidy(self.scope, queue, self.runner.policies, dry_run=dry_run)
