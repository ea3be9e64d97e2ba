"""The progress of running tasks, as reported by their handlers and sent with worker heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.errors import UsageError
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, one_step

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum characters of a text, and maximum tasks shown per worker.
_LENGTH, _MOST = 200, 200
# Field of the worker's registry record.
_FIELD = "progress"


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a task: `fraction` from 0 to 1, a text, and the unix time of the report."""

    fraction: float
    text: str
    at: float


class RunningProgress:
    """Progress of one worker's running tasks, written by several threads and read by the heartbeat."""

    def __init__(self, id_of: Callable[[Taken], str]) -> None:
        self._id_of = id_of
        # Returns the tasks that the worker holds; None if no heartbeat reports them.
        self.held: Callable[[], Iterable[Taken]] | None = None
        # Progress by attempt, so that progress of an earlier attempt does not count.
        self._said: dict[object, TaskProgress] = {}
        self._told = False

    def note(self, task: Taken, progress: TaskProgress) -> None:
        """Keep a task's progress until the next heartbeat."""
        if self.held is not None:
            self._said[task.place, task.attempt] = progress

    def fields(self) -> list[str]:
        """Return the field of the worker's record and its value; empty without progress to report."""
        if self.held is None or not (self._said or self._told):
            return []
        held = {(task.place, task.attempt): task for task in self.held()}
        progress: dict[str, list[object]] = {}
        for attempt, said in [*self._said.items()]:
            if attempt not in held:
                self._said.pop(attempt, None)
            elif len(progress) < _MOST:
                progress[self._id_of(held[attempt])] = [said.fraction, said.text, said.at]
        self._told = bool(progress)
        return [_FIELD, orjson.dumps(progress).decode() if progress else ""]


def progress_of(fraction: float, text: str, now: float) -> TaskProgress:
    """Return a validated progress report. Raises `UsageError`."""
    if type(fraction) not in (int, float) or not 0 <= fraction <= 1:
        raise UsageError(f"the progress is {fraction!r}", hint="give a fraction, from 0 to 1")
    if not isinstance(text, str):
        raise UsageError(f"the text of a progress is {text!r}", hint="give text")
    return TaskProgress(float(fraction), text[:_LENGTH].encode("utf-8", "replace").decode(), now)


def said(scope: Scope, worker: str, task: str) -> Op[TaskProgress | None]:
    """Return the progress of a task that a worker holds."""
    asked = one_step(Command("HGET", scope.keys.beat(worker), _FIELD))
    record: Any = yield from or_empty(asked, None)
    if not record:
        return None
    try:
        fraction, text, at = orjson.loads(record)[task]
        return progress_of(fraction, text, float(at))
    except (ValueError, TypeError, KeyError, UsageError):
        # The record is of another of the worker's tasks, or another program wrote it.
        return None
