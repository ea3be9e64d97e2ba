"""The beginning and the progress of running tasks, sent with worker heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
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
# Fields of the worker's registry record.
_PROGRESS, _BEGAN = "progress", "began"
# Seconds for which a task must have run before a heartbeat names it; most tasks end sooner.
_LONG = 1.0


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a task: `fraction` from 0 to 1, a text, and the unix time of the report."""

    fraction: float
    text: str
    at: float


class RunningProgress:
    """Progress of one worker's running tasks, written by several threads and read by the heartbeat."""

    def __init__(self, scope: Scope, id_of: Callable[[Taken], str]) -> None:
        self._scope = scope
        self._id_of = id_of
        # Returns the tasks that the worker holds; None if no heartbeat reports them.
        self.held: Callable[[], Iterable[Taken]] | None = None
        # Progress by attempt, so that progress of an earlier attempt does not count.
        self._said: dict[object, TaskProgress] = {}
        # The fields of the last heartbeat that have a value.
        self._told: set[str] = set()

    def note(self, task: Taken, progress: TaskProgress) -> None:
        """Keep a task's progress until the next heartbeat."""
        if self.held is not None:
            self._said[task.place, task.attempt] = progress

    def fields(self) -> list[str]:
        """Return the fields of the worker's record that changed, and their values."""
        if self.held is None:
            return []
        held = {(task.place, task.attempt): task for task in self.held()}
        values = {_PROGRESS: self._progress(held), _BEGAN: self._began(held.values())}
        words: list[str] = []
        for field, value in values.items():
            if value or field in self._told:
                words += (field, orjson.dumps(value).decode() if value else "")
        self._told = {field for field, value in values.items() if value}
        return words

    def _progress(self, held: Mapping[Any, Taken]) -> dict[str, list[object]]:
        progress: dict[str, list[object]] = {}
        for attempt, said in [*self._said.items()]:
            if attempt not in held:
                self._said.pop(attempt, None)
            elif len(progress) < _MOST:
                progress[self._id_of(held[attempt])] = [said.fraction, said.text, said.at]
        return progress

    def _began(self, held: Iterable[Taken]) -> dict[str, float]:
        """Return when each task began that has run for a while, by the server's clock, the oldest first."""
        now, began = time.monotonic(), []
        for task in held:
            since = getattr(task, "began", None)
            if since is not None and now - since >= _LONG and not hasattr(task, "took"):
                began.append((since, task))
        began.sort(key=itemgetter(0))
        at = self._scope.server_now() - now
        return {self._id_of(task): round(at + since, 3) for since, task in began[:_MOST]}


def progress_of(fraction: float, text: str, now: float) -> TaskProgress:
    """Return a validated progress report. Raises `UsageError`."""
    if type(fraction) not in (int, float) or not 0 <= fraction <= 1:
        raise UsageError(f"the progress is {fraction!r}", hint="give a fraction, from 0 to 1")
    if not isinstance(text, str):
        raise UsageError(f"the text of a progress is {text!r}", hint="give text")
    return TaskProgress(float(fraction), text[:_LENGTH].encode("utf-8", "replace").decode(), now)


def said(scope: Scope, worker: str, task: str) -> Op[tuple[TaskProgress | None, float | None]]:
    """Return the progress of a task that a worker holds, and the unix time at which it began."""
    asked = one_step(Command("HMGET", scope.keys.beat(worker), _PROGRESS, _BEGAN))
    progress, began = yield from or_empty(asked, (None, None))
    return _progress_in(progress, task), began_in(began).get(task)


def _progress_in(stored: Any, task: str) -> TaskProgress | None:
    if not stored:
        return None
    try:
        fraction, text, at = orjson.loads(stored)[task]
        return progress_of(fraction, text, float(at))
    except (ValueError, TypeError, KeyError, UsageError):
        # The record is of another of the worker's tasks, or another program wrote it.
        return None


def began_in(stored: Any) -> dict[str, float]:
    """Return when each task in a worker's record began; empty if another program wrote the record."""
    try:
        began = orjson.loads(stored or "{}")
    except (ValueError, TypeError):
        return {}
    if not isinstance(began, dict):
        return {}
    return {task: at for task, at in began.items() if isinstance(at, (int, float))}
