"""The state of one task: its attempts, and its dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import names
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.stream import id_time, text
from agentbus.queues import attempt_search, attempts, retry_stream
from agentbus.queues.attempts import Attempt, StopOrder
from agentbus.queues.dead_letters import DeadLetters
from agentbus.queues.dependencies import entry_of
from agentbus.queues.dependents import watched
from agentbus.queues.ids import RETRY, ROUTER, STREAMS, groups_of, taker
from agentbus.queues.policy import DEFAULTS
from agentbus.queues.progress import TaskProgress, said
from agentbus.queues.results import Address
from agentbus.queues.state import Entry, as_list, entries, settled, unready
from agentbus.store.failures import or_empty
from agentbus.store.scan import members
from agentbus.store.scope import server_time
from agentbus.store.steps import Batch, Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of dependents, and of runs from the attempt log, to show.
_SHOWN, _RUNS = 1000, 20
# States of tasks that have ended.
ENDED = ("done", "dead", "cancelled")


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task's state in a group; times are unix times.

    `state` is as in `Entry`, or `routed` (a router moved it to another queue). `attempts` is the number of
    runs that have begun; `runs` has them, oldest first, at most 20, as far as they are known: those of a
    task that has failed once are recorded, others are in the attempt log, if it still has them.
    `worker` holds the task, without a heartbeat for `idle` seconds, or by hand until `due`; or it has run
    the last attempt at a task that has ended. `progress` is its handler's last report. `error` is the
    reason why it is dead or cancelled, or its last failure; `letter` is its dead letter, `replayed` the
    task that a replay published. `priority` is None for a task that was delayed, has ended, and is no
    longer in its stream. `waits_for` are its unfinished dependencies, `awaited_by` its dependents.
    `stop_asked` is the cancellation of a running task, until it ends.
    """

    id: str
    queue: str
    group: str
    priority: str | None
    state: str
    published: float | None
    due: float | None
    worker: str | None
    idle: float | None
    attempts: int
    runs: tuple[Attempt, ...]
    error: str | None
    letter: str | None
    replayed: str | None
    waits_for: tuple[str, ...]
    awaited_by: tuple[str, ...]
    payload: Any
    envelope: Mapping[str, Any]
    progress: TaskProgress | None
    stop_asked: StopOrder | None

    @property
    def began(self) -> float | None:
        """When its last attempt began; of a first attempt that runs, known after about a second."""
        return self.runs[-1].began if self.runs else None

    @property
    def took(self) -> float | None:
        """The seconds that its last attempt took, or has taken so far."""
        return self.runs[-1].took if self.runs else None

    @property
    def finished(self) -> float | None:
        """When its last attempt ended; None for a task that has not ended."""
        ended = self.state in ENDED and self.began is not None and self.took is not None
        return (self.began or 0.0) + (self.took or 0.0) if ended else None

    @property
    def host(self) -> str | None:
        """The host of the worker of its last attempt."""
        return self.runs[-1].host if self.runs else None


def logged(
    scope: Scope, given: str, group: str | None = None, policies: Policies = DEFAULTS
) -> Op[TaskState]:
    """Return the state of a task as `task` does, with the attempts that only the attempt log has."""
    state = yield from task(scope, given, group, policies)
    if state.state not in ENDED or state.runs:
        return state
    entry = Address(state.id).entry
    since = state.published or 0.0
    runs = yield from attempt_search.of_task(scope, state.id, entry, state.group, since)
    if not runs:
        return state
    return replace(
        state,
        runs=tuple(runs[-_RUNS:]),
        attempts=max(state.attempts, runs[-1].attempt),
        worker=runs[-1].worker,
        error=runs[-1].error if state.error is None else state.error,
    )


def task(
    scope: Scope, given: str, group: str | None = None, policies: Policies = DEFAULTS
) -> Op[TaskState]:
    """Return the state of a task.

    `group` is needed only if the queue has several groups and none is named `default`. Raises `NotFound`,
    and `UsageError` for an invalid id.
    """
    address = Address(given)
    queue, keys = address.queue, scope.keys
    group = yield from _group(scope, address, group)
    entry, waits_for = yield from _entry(scope, address, group, policies)
    (outcome,) = yield Script("read_outcomes", (keys.result(address.id, group),))
    record, awaited = yield Batch(
        [
            ("HGETALL", keys.runs(address.id, group)),
            (
                *("ZRANGEBYLEX", keys.awaited(queue), f"[{address.id}\n", f"({address.id}\x0b"),
                *("LIMIT", 0, _SHOWN),
            ),
        ]
    )
    stored = attempts.newest(as_list(record))
    if group == ROUTER and not outcome and (entry is None or entry.state == "done"):
        # A router only moves tasks. The queue that it chose records the outcome under the task's
        # original id.
        (outcome,) = yield Script("read_outcomes", (keys.result(address.id, "default"),))
        if entry is None and not outcome:
            entry = yield from _moved(scope, address, policies)
        if entry is not None:
            moved = settled(outcome, None) or ("done" if outcome else "routed")
            entry = replace(entry, state=moved)
    if entry is None:
        entry = _ended(address, group, outcome, stored)
    letter, error = attempts.burial(outcome) or ("", None)
    # The dead letter of a routed task is in another queue.
    letter, _, elsewhere = letter.partition("@")
    replayed = None
    if letter and not elsewhere and group != ROUTER:
        letters_of = policies.letters_of(queue)
        asked = one_step(Command("HGET", keys.replayed(letters_of, group), letter))
        replayed = yield from or_empty(asked, None)
        if entry.payload is None:
            entry = yield from _as_buried(scope, entry, letter, letters_of)
    created = entry.envelope.get("created_at")
    published = float(created) if isinstance(created, (int, float)) else entry.published
    runs = attempts.decoded(stored, entry.published)
    progress = began = None
    if entry.state == "running" and entry.holder is not None and taker(entry.holder) is None:
        progress, began = yield from said(scope, entry.holder, address.id)
    if entry.state == "running":
        runs = _with_running(runs, entry, began, (yield from server_time(scope)))
    # A first attempt is never counted.
    first = 1 if entry.state in ("done", "running") else 0
    waiting = [
        text(member).rpartition("\n")[2][2:]
        for member in as_list(awaited)
        if member.count(b"\n") > 1
    ]
    dependents = dict.fromkeys(member for member in waiting if not watched(member))
    return TaskState(
        id=address.id,
        queue=queue,
        group=group,
        priority=entry.priority or None,
        state=entry.state,
        published=published or None,
        due=entry.due,
        worker=runs[-1].worker
        if entry.holder is None and entry.state in ENDED and runs
        else entry.holder,
        idle=entry.idle,
        attempts=max(first, entry.attempts or 0, *(run.attempt for run in runs), 0),
        runs=runs,
        error=runs[-1].error if error is None and runs else error,
        letter=letter or None,
        replayed=None if replayed is None else text(replayed),
        waits_for=waits_for,
        awaited_by=tuple(dependents),
        payload=entry.payload,
        envelope=entry.envelope,
        progress=progress,
        stop_asked=entry.stop_asked,
    )


def _with_running(
    runs: tuple[Attempt, ...], entry: Entry, began: float | None, now: float
) -> tuple[Attempt, ...]:
    """Add the attempt that runs: it is recorded when it begins only if its worker died before."""
    last = runs[-1] if runs else None
    if last is None or last.outcome != "running":
        if last is None and began is None:
            return runs
        # The task was due when the attempt before it had failed, or when it was published.
        number = (entry.attempts or 0) + 1
        waited = max(0.0, began - entry.published) if began and last is None else None
        last = Attempt(number, entry.holder, None, began, waited, None, "running", None)
        runs = (*runs, last)
    if last.began is None:
        return runs
    return (*runs[:-1], replace(last, took=max(0.0, now - last.began)))


def _entry(
    scope: Scope, address: Address, group: str, policies: Policies
) -> Op[tuple[Entry | None, tuple[str, ...]]]:
    """Return a task from its current place, or None if it is gone; and its unfinished dependencies."""
    queue, where = address.queue, (address.entry, address.priority)
    if address.number:
        entry, waits_for = yield from _not_ready(scope, address, group)
        if entry is not None:
            return entry, waits_for
        # The delayed task got an entry when it became due.
        where = (yield from entry_of(scope, address.id, group)) or ("", "")
    elif moved := (yield from retry_stream.entry_of(scope, queue, address.id, group)):
        where = moved, RETRY
    if where[0]:
        stream = scope.keys.queue(queue, where[1])
        flat = yield Command("XRANGE", stream, where[0], where[0])
        if flat:
            letters_of = policies.letters_of(queue)
            (entry,) = yield from entries(scope, queue, group, where[1], flat, letters_of)
            return entry, ()
    return None, ()


def _moved(scope: Scope, address: Address, policies: Policies) -> Op[Entry | None]:
    """Return an unfinished task from the queue to which a router has moved it."""
    for queue in (yield from members(scope.keys.queues)):
        where = yield from entry_of(scope, address.id, "default", queue)
        if where is not None:
            entry, priority = where
            flat = yield Command("XRANGE", scope.keys.queue(queue, priority), entry, entry)
            if flat:
                letters_of = policies.letters_of(queue)
                (moved,) = yield from entries(scope, queue, ROUTER, priority, flat, letters_of)
                return moved
    return None


def _ended(address: Address, group: str, outcome: bytes, stored: list[bytes]) -> Entry:
    """Return a task that is gone, from its outcome. Raises `NotFound` without a recorded outcome."""
    ended = attempts.decoded(stored[-1:], None)
    state = settled(outcome, ended[-1].outcome.encode() if ended else None)
    if not (state or outcome):
        raise NotFound(
            f"there is no task {address.id!r}, or it has ended and its outcome is no longer recorded",
            hint=f"no task in {address.queue!r} has this id",
        )
    published = id_time(address.entry or "0-0")
    # A delayed task's id does not show its priority.
    priority = "" if address.number else address.priority
    return Entry(
        *(address.id, address.queue, group, priority, published, state or "done"),
        *(None, None, None, None),
        payload=None,
        envelope={},
        error=None,
    )


def _as_buried(scope: Scope, entry: Entry, letter: str, letters_of: str) -> Op[Entry]:
    """Return a task that is no longer in a stream, with the payload from its dead letter."""
    box = DeadLetters(scope, entry.queue, entry.group, letters_of=letters_of)
    try:
        dead_letter = yield from box.letter(letter)
    except NotFound:
        # The dead letter was purged.
        return entry
    fields = dead_letter.fields or {}
    try:
        meta = orjson.loads(fields.get("meta", "{}"))
    except ValueError:
        meta = {}
    return replace(
        entry,
        payload=dead_letter.payload,
        envelope={"correlation_id": entry.id, **(meta if isinstance(meta, dict) else {})},
        priority=fields.get("priority", entry.priority),
    )


def groups_at(scope: Scope, queue: str, priority: str) -> Op[dict[str, str]]:
    """Return the groups of a stream, except routers, and the last id delivered to each."""
    infos = yield from groups_of(scope, queue, STREAMS)
    return {
        text(info[b"name"]): text(info[b"last-delivered-id"]) for info in infos.get(priority, ())
    }


def _group(scope: Scope, address: Address, group: str | None) -> Op[str]:
    if group is not None:
        return names.name("group", group)
    groups = yield from groups_at(scope, address.queue, address.priority)
    several = sorted(groups.keys() - {ROUTER})
    if "default" in several or not several:
        # A router records tasks that match no rule under its own group.
        return "default" if several or ROUTER not in groups else ROUTER
    if len(several) > 1:
        raise UsageError(
            f"the task {address.id!r} has several groups ({', '.join(map(repr, several))})",
            hint="name the group",
        )
    return several[0]


def _not_ready(
    scope: Scope, address: Address, group: str
) -> Op[tuple[Entry | None, tuple[str, ...]]]:
    """Return a task that is delayed or waits for others, and its unfinished dependencies."""
    keys, queue, name = scope.keys, address.queue, address.id
    due, delayed, dependent = yield Batch(
        [
            ("ZSCORE", keys.delayed(queue), name),
            ("HGET", keys.bodies(queue), name),
            ("HGET", keys.after_bodies(queue), name),
        ]
    )
    if due is not None and delayed is not None:
        return unready(name, queue, group, delayed, float(due) / 1000), ()
    if dependent is None:
        return None, ()
    (waits_for,) = yield from unfinished_dependencies(scope, queue, [name])
    return unready(name, queue, group, dependent, None), waits_for


def unfinished_dependencies(
    scope: Scope, queue: str, names: Sequence[str]
) -> Op[list[tuple[str, ...]]]:
    """Return for each blocked task of a queue the tasks that it still waits for."""
    key = scope.keys.after_bodies(queue)
    (stored,) = yield Batch([("HMGET", key, *(f"{name}\n" for name in names))])
    marks = [
        [str(mark) for mark in (orjson.loads(waits) if waits else ())] for waits in as_list(stored)
    ]
    asked = [
        (
            *("ZSCORE", scope.keys.awaited(Address(mark.partition("\n")[0]).queue)),
            f"{mark}\n{len(Address(name).number):02d}{name}",
        )
        for name, waits in zip(names, marks, strict=False)
        for mark in waits
    ]
    scores = iter((yield Batch(asked)) if asked else ())
    return [
        tuple(mark.partition("\n")[0] for mark in waits if isinstance(next(scores), bytes))
        for waits in marks
    ]
