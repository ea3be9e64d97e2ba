"""Reruns tasks: delivers acknowledged tasks that are still in the stream to their group again."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import names, timespec
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.stream import position, text
from agentbus.core.validate import is_seconds, number_of
from agentbus.queues.ids import ASIDE, RETRY, groups_of, split, task_id
from agentbus.store.scope import server_time
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step

# Entries that one script examines, or fewer if they are large.
_SLICE = 500
_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Replayed:
    """The tasks that were (or would be) redelivered: their number, the first and the last.

    `pending` counts the excluded tasks that are running, or wait for their next attempt.
    """

    queue: str
    group: str
    tasks: int
    pending: int
    first: str | None
    last: str | None
    dry_run: bool


def replay_from(
    scope: Scope,
    queue: str,
    group: str,
    start: str | float,
    until: str | float | None = None,
    *,
    dry_run: bool = False,
    limit: int | None = None,
) -> Op[Replayed]:
    """Redeliver the tasks from `start` to `until` that a group has acknowledged.

    Raises `NotFound` if the queue does not have this group.
    """
    now = yield from server_time(scope)
    first = point(start, queue, now)
    end = (_MAX, _MAX) if until is None else position(point(until, queue, now, last=True))
    if position(first) > end:
        raise UsageError("the replay ends before it starts", hint="give an earlier start")
    if limit is not None:
        number_of("the limit", limit, "tasks")
        if not limit:
            raise UsageError("the limit is 0", hint="give a positive number")
    # Exclude tasks that are published, or first acknowledged, after this point.
    reached = yield from _reached(scope, queue, group)
    left = _MAX if limit is None else limit
    span: list[tuple[tuple[int, int], str]] = []
    tasks = pending = 0
    for priority, last_delivered in reached.items():
        last = min(end, position(last_delivered))
        keys = (
            *(scope.keys.queue(queue, priority), scope.keys.retries(queue, group, priority)),
            *(scope.keys.attempts(queue, group, priority), scope.keys.stats(queue)),
            *(scope.keys.bell(queue), scope.keys.cancelled(queue)),
            *(scope.keys.queue(queue, RETRY), scope.keys.moved(queue)),
        )
        at, due = first, "0"
        while left and at and position(at.lstrip("(")) <= last:
            argv = (
                *(group, at, f"{last[0]}-{last[1]}", _SLICE, min(left, _SLICE), ASIDE, due),
                *("1" if dry_run else "0", task_id("", queue, priority)),
            )
            at, number, oldest, newest, busy, due = yield Script(
                "redeliver", keys, argv, writes=not dry_run
            )
            at, due = text(at), text(due)
            tasks += number
            left -= number
            pending += busy
            for entry in (oldest, newest):
                if entry:
                    entry_id = text(entry)
                    span.append((position(entry_id), task_id(entry_id, queue, priority)))
            span = [min(span), max(span)] if span else []
    oldest_id, newest_id = (span[0][1], span[-1][1]) if span else (None, None)
    return Replayed(queue, group, tasks, pending, oldest_id, newest_id, dry_run)


def point(given: str | float, queue: str, now: float, *, last: bool = False) -> str:
    """Convert a task id, an entry id, a time or a duration before `now` into an inclusive id.

    With `last`, the result is the end of a range. A number is a unix time.
    """
    if isinstance(given, (int, float)):
        if not is_seconds(given) or math.isinf(given):
            raise UsageError(f"{given!r} is not a time", hint="give a unix time in seconds")
        given = f"{max(0, round(given * 1000))}"
    if isinstance(given, str) and "@" in given:
        entry, name, _ = split(given)
        if name != names.escape(queue) or timespec.stream_id(entry) is None:
            raise UsageError(
                f"{given[:60]!a} is not a place in the queue {queue!r}",
                hint="give the id of a task of this queue that was not delayed, or a time",
            )
        given = entry
    parts = timespec.stream_id(given) if isinstance(given, str) else None
    if parts is not None and "-" in given:
        return f"{parts[0]}-{parts[1]}"
    milliseconds = timespec.since(given, now).partition("-")[0]
    return f"{milliseconds}-{_MAX if last else 0}"


def _reached(scope: Scope, queue: str, group: str) -> Generator[Step, Any, dict[str, str]]:
    """Return the last id delivered to the group, for each priority."""
    groups_by_priority = yield from groups_of(scope, queue)
    reached = {
        priority: text(group_info[b"last-delivered-id"])
        for priority, groups in groups_by_priority.items()
        for group_info in groups
        if group_info[b"name"] == group.encode()
    }
    if not reached:
        raise NotFound(
            f"the queue {queue!r} has no group {group!r}",
            hint="a group is created when its first worker starts",
        )
    return reached
