"""Writes failed runs and burials to the operations log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core import loggers
from agentbus.queues.claimed import said

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.store.scope import Scope


def is_heard(level: str) -> bool:
    """Report whether records of a level go anywhere."""
    return loggers.heard(level)


def emit(
    scope: Scope, of: tuple[str, str, str], level: str, task: Taken, error: BaseException | str
) -> None:
    """Log that a run of a task failed, with the traceback, or that the task was buried.

    `of` is its queue, its group and its id.
    """
    why, raised = said(error), error if isinstance(error, BaseException) else None
    queue, group, name = of
    outcome = "buried" if raised is None else "failed"
    fields: dict[str, object] = {
        "verb": "work",
        "agent": scope.agent,
        "project": scope.keys.project,
        "queue": queue,
        "group": group,
        "id": name,
        "attempt": task.attempt,
        "outcome": outcome,
        "error": why,
    }
    text = f"{name} {outcome} (group {group}, attempt {task.attempt}): {why}"
    loggers.emit(level, fields, text, raised)
