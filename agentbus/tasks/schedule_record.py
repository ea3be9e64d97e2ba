"""The record of a schedule: its task, and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError
from agentbus.core.stream import is_number, text
from agentbus.queues.ids import writable
from agentbus.queues.publish import check_priority, encoded
from agentbus.queues.task import Task, envelope_of
from agentbus.tasks import cron

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.tasks.cron import Timing

MISSED = ("once", "all", "none")
# Headers of a tick's task: the name of its schedule, and the time for which it was due.
SCHEDULE, DUE = "schedule", "schedule-due"
# A tick's dedup key is its schedule's name followed by a time of 25 characters.
_LONGEST_NAME = 200
# Fields that define a schedule; changing one creates a new version.
_DEFINED = ("queue", "payload", "every", "cron", "timezone", "missed", "envelope")
_TIMES = ("every", "cron", "timezone")
_KEPT = (*_DEFINED, "version", "paused", "owner", "agent_id", "created", "anchor")
# Envelope fields that a schedule refuses, because every tick would have the same value.
_OF_ONE_TASK = ("created_at", "trail", "traceparent")


@dataclass(frozen=True, slots=True)
class Definition:
    """A schedule's task and times: the arguments of `Schedules.add`."""

    name: str
    queue: str
    payload: Any = None
    every: float | None = None
    cron: str | None = None
    timezone: str = "UTC"
    missed: str = "once"
    envelope: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A stored schedule.

    `due` is the unix time of its next tick, or None if it is paused or never due; `last_due` is that of the
    last published tick, and `last_task` the id of its task. `published` counts ticks, except those omitted
    because a task with the schedule's own key existed. `refused` is the number of times that the full queue
    has refused the tick that is due, since `refused_since`. `agent_id` is the agent that defined it,
    `owner` the program that declares it (see `Schedules.sync`).
    """

    name: str
    queue: str
    payload: Any
    every: float | None
    cron: str | None
    timezone: str
    missed: str
    envelope: Mapping[str, Any]
    version: int = 0
    paused: bool = False
    owner: str | None = None
    agent_id: str = ""
    created: int = 0
    anchor: int = 0
    due: float | None = None
    last_due: float | None = None
    last_task: str | None = None
    published: int = 0
    refused: int = 0
    refused_since: float | None = None

    def timing(self) -> Timing:
        """Return the object that computes its due times. Raises `UsageError` for an unknown time zone."""
        if self.every is not None:
            return cron.Every(self.every, self.anchor)
        assert self.cron is not None
        return cron.Cron(self.cron, self.timezone)

    def upcoming(self, number: int = 3) -> list[float]:
        """Return its next due times in unix seconds."""
        timing, times = self.timing(), [] if self.due is None else [round(self.due * 1000)]
        while times and len(times) < number:
            later = timing.after(times[-1])
            if later is None:
                break
            times.append(later)
        return [time / 1000 for time in times]


def check_times(
    what: str,
    every: float | None,
    expression: str | None,
    timezone: str = "UTC",
    missed: str = "once",
) -> None:
    """Raise `UsageError` unless the arguments define when a schedule is due."""
    if (every is None) == (expression is None):
        raise UsageError(
            f"{what} has {'no times' if every is None else 'both'}",
            hint="give a period, or a cron expression",
        )
    if every is not None:
        cron.period(every)
        if timezone != "UTC":
            raise UsageError("a period has no time zone", hint="leave it out, or give cron")
    else:
        assert expression is not None
        cron.checked(expression)
        cron.zone(timezone)
    if missed not in MISSED:
        raise UsageError(f"missed is {missed!r}", hint=f"use one of {', '.join(MISSED)}")


def checked(scope: Scope, given: Definition) -> ScheduleState:
    """Convert a definition to a schedule. Raises `UsageError`, `InvalidPayload`."""
    name = names.name("schedule", given.name)
    if len(name.encode()) > _LONGEST_NAME:
        raise UsageError(
            f"the name of the schedule has {len(name.encode())} bytes",
            hint=f"use at most {_LONGEST_NAME}",
        )
    writable(names.name("queue", given.queue))
    check_times(f"the schedule {name!r}", given.every, given.cron, given.timezone, given.missed)
    envelope = {key: value for key, value in given.envelope.items() if value is not None}
    for key in _OF_ONE_TASK:
        if key in envelope:
            raise UsageError(f"a schedule has no {key!r}", hint="leave it out: it is one task's")
    if "priority" in envelope:
        check_priority(envelope["priority"])
    if "unique" in envelope and "key" not in envelope:
        # Without a key, each tick would have a different one.
        raise UsageError(f"the schedule {name!r} is unique, and has no key", hint="give it a key")
    envelope_of(Task(None, **envelope))
    if "headers" in envelope:
        envelope["headers"] = dict(envelope["headers"])
    state = ScheduleState(
        name,
        given.queue,
        given.payload,
        None if given.every is None else float(given.every),
        given.cron,
        given.timezone,
        given.missed,
        envelope,
    )
    # Refuse an invalid task now, not at its first tick.
    encoded(scope, task_of(state, 0))
    return state


def task_of(schedule: ScheduleState, due: int | None) -> Task:
    """Return the task of a schedule's tick at a time in ms; without a time, of a call between ticks."""
    envelope: dict[str, Any] = {**schedule.envelope}
    headers = {**(envelope.pop("headers", None) or {}), SCHEDULE: schedule.name}
    if due is not None:
        headers[DUE] = rfc3339(due / 1000, milliseconds=True)
        key = f"{schedule.name}@{headers[DUE]}"
        envelope = {"key": key, "correlation_id": key, **envelope}
    return Task(schedule.payload, headers=headers, **envelope)


def written(state: ScheduleState) -> bytes:
    """Return the record of a schedule."""
    return orjson.dumps({name: getattr(state, name) for name in _KEPT})


def read(name: str, fields: Mapping[bytes, bytes]) -> ScheduleState | None:
    """Return a schedule from the fields of its hash; None if it does not exist or is unreadable."""
    try:
        record = orjson.loads(fields[b"record"])
        state = ScheduleState(name, **{field: record[field] for field in _KEPT})
        _check(state)
    except (KeyError, ValueError, TypeError, UsageError):
        return None

    def number(field: bytes) -> int | None:
        value = text(fields.get(field, b""))
        return int(value) if is_number(value) else None

    def seconds(field: bytes) -> float | None:
        value = number(field)
        return None if value is None else value / 1000

    return replace(
        state,
        due=seconds(b"due"),
        last_due=seconds(b"last_due"),
        last_task=text(fields[b"last_task"]) if b"last_task" in fields else None,
        published=number(b"published") or 0,
        refused=number(b"refused") or 0,
        refused_since=seconds(b"refused_since"),
    )


def is_defined_as(state: ScheduleState, other: ScheduleState) -> bool:
    """Return whether two schedules publish the same task at the same times."""
    return _dumped(state, _DEFINED) == _dumped(other, _DEFINED)


def has_times_of(state: ScheduleState, other: ScheduleState) -> bool:
    """Return whether two schedules are due at the same times."""
    return _dumped(state, _TIMES) == _dumped(other, _TIMES)


def due_text(state: ScheduleState, now: int) -> str | None:
    """Return a schedule's first due time after a time in ms, as text; None for never."""
    due = state.timing().after(now)
    return None if due is None else str(due)


def _dumped(state: ScheduleState, fields: tuple[str, ...]) -> bytes:
    # Compare as JSON: a stored payload has lists where the given payload may have tuples.
    values = {name: getattr(state, name) for name in fields}
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)


def _check(state: ScheduleState) -> None:
    """Raise an error if a record is malformed, because another program wrote it."""
    for value, kinds in (
        (state.queue, str),
        (state.timezone, str),
        (state.cron, (str, type(None))),
        (state.every, (float, int, type(None))),
        (state.envelope, dict),
        (state.version, int),
        (state.paused, bool),
        (state.owner, (str, type(None))),
        (state.agent_id, str),
        (state.created, int),
        (state.anchor, int),
    ):
        if not isinstance(value, kinds):
            raise TypeError("a field has another type")
    writable(state.queue)
    if state.missed not in MISSED or (state.every is None) == (state.cron is None):
        raise ValueError("not a schedule")
    if state.every is not None:
        cron.period(state.every)
    else:
        # Skip the time zone, which may be known only on another host.
        cron.checked(state.cron or "")
    envelope_of(task_of(state, 0))
