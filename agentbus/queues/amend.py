"""Changes the due time or the priority of a task that no worker has taken yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.errors import Refused, UsageError
from agentbus.queues import retry_stream, task_state
from agentbus.queues.dependencies import entry_of
from agentbus.queues.ids import RETRY
from agentbus.queues.policy import DEFAULTS
from agentbus.queues.publish import check_priority, due
from agentbus.queues.results import Address
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.queues.task_state import TaskState
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


def amend(
    scope: Scope,
    given: str,
    *,
    priority: str | None = None,
    at: float | None = None,
    now: bool = False,
    group: str | None = None,
    policies: Policies = DEFAULTS,
) -> Op[TaskState]:
    """Change a task that is delayed, waits for others or for a retry, and return its state atomically.

    The priority of a retry cannot be changed. Raises `NotFound`, `Refused` for a task in another state, and
    `UsageError`.
    """
    if priority is None and at is None and not now:
        raise UsageError("there is nothing to change", hint="give a priority, a time, or now")
    if at is not None and now:
        raise UsageError("a task is due at a time, or now", hint="give one of them")
    if priority is not None:
        check_priority(priority)
    task = Address(given)
    when = "" if at is None else due(None, at)[1]
    keys, queue = scope.keys, task.queue
    state = yield from task_state.task(scope, given, group, policies)
    retries, entries = [], []
    if state.state == "retrying":
        for entry, tier in (yield from _entries(scope, task, state.group)):
            retries.append(keys.retries(queue, state.group, tier))
            entries.append(entry)
    step = Script(
        "amend",
        (
            *(keys.delayed(queue), keys.bodies(queue), keys.after(queue)),
            *(keys.after_bodies(queue), keys.bell(queue), *retries),
        ),
        (task.id, priority or "", when, int(now), *entries),
        writes=True,
    )
    changed = yield step
    state = yield from task_state.task(scope, given, group, policies)
    # A worker may have taken the task after a first attempt whose reply was lost: report success.
    if not changed and step.sendings < 2:
        what = "its priority" if priority is not None else "when it is due"
        raise Refused(
            f"the task {task.id!r} is {state.state}: {what} cannot be changed any more",
            hint="change one that is delayed, or waits for other tasks, or cancel it and publish it again",
        )
    return state


def _entries(scope: Scope, task: Address, group: str) -> Op[list[tuple[str, str]]]:
    """Return the possible entries of a task that waits for a retry, each with its priority."""
    if task.number:
        where = yield from entry_of(scope, task.id, group)
        return [] if where is None else [where]
    moved = yield from retry_stream.entry_of(scope, task.queue, task.id, group)
    return [(task.entry, task.priority), *([(moved, RETRY)] if moved is not None else [])]
