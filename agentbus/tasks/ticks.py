"""The ticks of schedules: each publishes one task, exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import UsageError
from agentbus.core.stream import text
from agentbus.queues import tracing
from agentbus.queues.publish import Encoded, encoded, full, stream_keys, window_of
from agentbus.queues.retry_stream import make_room
from agentbus.store.steps import Command, Script
from agentbus.tasks import schedule_record
from agentbus.tasks.schedule_record import task_of

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op
    from agentbus.tasks.schedule_record import ScheduleState

# Maximum number of missed ticks to publish with missed="all".
MOST_MISSED = 100
# Milliseconds after which a tick counts as missed with missed="none".
LATE = 60_000
# Milliseconds until a tick that a full queue refused is retried.
_AGAIN = 1_000


@dataclass(frozen=True, slots=True)
class Tick:
    """The outcome of a schedule's due time (unix seconds).

    `task_id` is the id of its task. Without a task, the tick was missed and omitted, or, if `error` says
    so, a full queue refused the task; the tick then stays due.
    """

    schedule: str
    due: float
    task_id: str | None
    error: str | None = None


def decided(schedule: ScheduleState, now: int) -> tuple[int, int | None, bool]:
    """Return the time of the tick to publish at a time in ms, the next due time, and whether to publish it.

    The schedule must be due. Raises `UsageError` if its time zone is unknown here.
    """
    assert schedule.due is not None
    first, timing = round(schedule.due * 1000), schedule.timing()
    most = MOST_MISSED if schedule.missed == "all" else 1
    # If the time zone's rules have changed, the due time may no longer occur in the schedule.
    ticks = timing.latest(first, now, most) or [first]
    if len(ticks) > 1:
        return ticks[0], ticks[1], True
    in_time = schedule.missed != "none" or now - ticks[0] <= LATE
    return ticks[0], timing.after(max(now, ticks[0])), in_time


def tick(scope: Scope, name: str, now: int, policies: Policies) -> Op[Tick | None]:
    """Publish the task of a due schedule, and set its next due time; return None if it is not due.

    `now` is the server's time in ms. This is one atomic step, which does nothing if the schedule was
    changed, or another scheduler was faster. Raises `UsageError` for a schedule that cannot be published
    here.
    """
    keys = scope.keys
    kept = yield Command("HGETALL", keys.schedule(name))
    fields = dict(zip(kept[::2], kept[1::2], strict=True))
    schedule = schedule_record.read(name, fields)
    if schedule is None:
        raise UsageError(
            f"the record of the schedule {name!r} is not one of this version of agentbus",
            hint="add it again, or remove it",
        )
    if schedule.due is None or schedule.due * 1000 > now:
        return None
    due, later, publishes = decided(schedule, now)
    policy = policies.policy_of(schedule.queue)
    span = None
    if publishes:
        span = tracing.begin(schedule.queue, schedule.queue, **{"agentbus.schedule": name})
    task = tracing.stamped(task_of(schedule, due), span)
    priority = task.priority or policy.tier
    place, once = stream_keys(keys.project, schedule.queue, priority), scope.once()
    places = [
        *(keys.schedules, keys.schedule(name), place.stream, place.queues, place.stats, once.key),
        *(place.order, place.metrics, place.readers, place.retries),
    ]
    head: list[Arg] = [
        *(name, fields.get(b"stamp", b""), fields[b"due"], now, due),
        *("" if later is None else later, _AGAIN),
    ]
    argv: list[Any] = [
        *(1, schedule.queue, policy.bound, "trim" if policy.on_full == "trim" else "refuse"),
        *(round(window_of(task, policy.window)), place.suffix, once.token, int(publishes)),
    ]
    if publishes:
        entry = encoded(scope, task)
        assert isinstance(entry, Encoded)
        assert entry.key is not None
        words = entry.words(scope.agent)
        argv += (len(words), 1, entry.ordering_key or "", *words)
        places.append(keys.seen(schedule.queue, entry.key))
    while True:
        step = Script("tick", places, [*head, *argv], writes=True)
        reply = yield step
        scope.free_slot(once, step)
        if reply[0] != b"full":
            break
        if not argv[0] or not reply[3]:
            error = full(schedule.queue, policy.bound, reply).message
            return Tick(name, due / 1000, None, error)
        argv[0] = int((yield from make_room(scope, schedule.queue, priority, reply)))
    if reply[0] == b"changed":
        return None
    tracing.end(span)
    return Tick(name, due / 1000, text(reply[1]) if publishes else None)
