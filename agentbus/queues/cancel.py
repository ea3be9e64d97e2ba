"""Cancels tasks: no further attempt begins, and a worker that is running the task is asked to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agentbus.core import envelope
from agentbus.core.clock import rfc3339
from agentbus.core.errors import Refused
from agentbus.core.stream import position, text
from agentbus.queues import attempts, results, retry_stream, task_state
from agentbus.queues.dependencies import entry_of
from agentbus.queues.dependents import groups as working, passed_on, queue_of
from agentbus.queues.ids import (
    ASIDE,
    MOVED_FROM,
    RESULT_KEPT,
    RETRY,
    ROUTER,
    split,
    suffix,
    task_id,
)
from agentbus.queues.notify import Notifications, notifications
from agentbus.queues.policy import DEFAULTS
from agentbus.queues.results import Address
from agentbus.store.scan import members
from agentbus.store.steps import Batch, Command, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op

_HELD = "held "


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancelled task. `state` is `cancelled`, or `stopping` while `workers` may still run it.

    A worker that holds the task stops it within about a second, unless it ends earlier or cannot be
    interrupted.
    """

    id: str
    queue: str
    state: str
    workers: tuple[str, ...]


def cancel(
    scope: Scope, given: str, policies: Policies = DEFAULTS, *, flow: str | None = None
) -> Op[Cancelled]:
    """Cancel a task for all groups that have not finished it; idempotent.

    A task that no worker holds is removed in one atomic step, and those that wait for it are buried. A
    worker that holds it is asked to stop it. With a `flow`, only a task that was published as part of it is
    cancelled. Raises `NotFound`, `Refused` for a finished task, and `UsageError` for an invalid id.
    """
    task = Address(given)
    by = f"{scope.agent} @ {rfc3339(scope.now())}"
    why, kept = attempts.cancelled_by(by), _kept(policies, task.queue)
    if task.number and (yield from _not_ready(scope, task, why, kept, flow)):
        return Cancelled(task.id, task.queue, "cancelled", ())
    held = [(yield from _cancel_unfinished(scope, task, by, kept, flow))]
    if ROUTER in (yield from working(scope, task.queue)):
        # A router moved the task to a queue that is not recorded, where it has a different entry.
        for queue in (yield from members(scope.keys.queues)):
            if queue != task.queue:
                there = Address(task.id)
                there.queue, there.entry = queue, ""
                kept = _kept(policies, queue)
                held.append((yield from _cancel_unfinished(scope, there, by, kept, flow)))
    undone = [workers for workers in held if workers is not None]
    if not undone:
        return (yield from _confirm_cancelled(scope, task, policies))
    workers = set[str]().union(*undone)
    state = "stopping" if workers else "cancelled"
    return Cancelled(task.id, task.queue, state, tuple(sorted(workers)))


def _kept(policies: Policies, queue: str) -> int:
    return max(math.ceil(policies.results_of(queue)), RESULT_KEPT)


def _cancel_unfinished(
    scope: Scope, task: Address, by: str, kept: int, flow: str | None
) -> Op[set[str] | None]:
    """Cancel a task in one queue; return the workers that hold it, or None if it has ended there."""
    while True:
        outcome = yield from _cancel_everywhere(scope, task, by, kept, flow)
        if outcome is not None:
            undone, workers = outcome
            return workers if undone else None


def _cancel_everywhere(
    scope: Scope, task: Address, by: str, kept: int, flow: str | None
) -> Op[tuple[bool, set[str]] | None]:
    """Cancel the entries of a task; return whether one was unfinished, and the workers that hold it.

    Return None if a state changed concurrently.
    """
    undone, workers = False, set[str]()
    for place in (yield from _places(scope, task)):
        entries = yield Command("XRANGE", place.stream, place.entry, place.entry)
        states = yield from _states(scope, task.queue, place)
        if not entries or set(states.values()) == {"done"}:
            continue
        undone = True
        holders = {was.removeprefix(_HELD) for was in states.values() if was.startswith(_HELD)}
        workers |= holders - {ASIDE}
        if (yield Command("HGET", scope.keys.cancelled(task.queue), place.mark)):
            continue
        meta = _meta(place, entries[0][1])
        _check_flow(task, meta, flow)
        if (yield _script(scope, task, place, meta, states, by, kept)) == b"again":
            return None
        yield from passed_on(scope)
        if holders <= {ASIDE}:
            yield from _wake_ordered(scope, task.queue, place, states, meta)
    return undone, workers


class _Spot(NamedTuple):
    """The entry of a task: its id, priority, stream, and name among the cancelled tasks."""

    entry: str
    priority: str
    stream: str
    mark: str


def _places(scope: Scope, task: Address) -> Op[list[_Spot]]:
    """Return the present and former entries of a task; none if it was delayed and has ended."""
    queue = task.queue
    spots: dict[tuple[str, str], None] = {}
    if not task.entry:
        groups = yield from task_state.groups_at(scope, queue, task.priority)
        for group in groups or ("default",):
            where = yield from entry_of(scope, task.id, group, queue)
            spots.update({} if where is None else {where: None})
    else:
        spots[task.entry, task.priority] = None
        for group in (yield from task_state.groups_at(scope, queue, RETRY)):
            moved = yield from retry_stream.entry_of(scope, queue, task.id, group)
            spots.update({} if moved is None else {(moved, RETRY): None})
    return [
        _Spot(entry, priority, scope.keys.queue(queue, priority), task_id(entry, queue, priority))
        for entry, priority in spots
    ]


def _states(scope: Scope, queue: str, place: _Spot) -> Op[dict[str, str]]:
    """Return the state of an entry for each group; under '' if there is no group yet."""
    groups = yield from task_state.groups_at(scope, queue, place.priority)
    if not groups:
        return {"": "waiting"}
    held = yield Batch(
        [("XPENDING", place.stream, group, place.entry, place.entry, 1) for group in groups]
    )
    states = {}
    for (group, reached), pending in zip(groups.items(), held, strict=True):
        if isinstance(pending, list) and pending:
            states[group] = _HELD + text(pending[0][1])
        else:
            waits = position(place.entry) > position(reached)
            states[group] = "waiting" if waits else "done"
    return states


def _script(
    scope: Scope,
    task: Address,
    place: _Spot,
    meta: Mapping[str, Any],
    states: Mapping[str, str],
    by: str,
    kept: int,
) -> Script:
    keys, queue, why = scope.keys, task.queue, attempts.cancelled_by(by)
    name = str(meta.get("id") or task.id)
    # If a router moved the task, its dedup key and dependents still belong to the queue in its id.
    first = queue_of(name)
    groups: list[str] = []
    words: list[Arg] = []
    told = Notifications()
    for existing, was in states.items():
        group = existing or "default"
        holder = was.removeprefix(_HELD) if was.startswith(_HELD) else ASIDE
        groups += (
            *(
                keys.attempts(queue, group, place.priority),
                keys.retries(queue, group, place.priority),
            ),
            *(
                keys.result(name, group),
                keys.stats(queue) if holder == ASIDE else keys.beat(holder),
            ),
        )
        words += (group, was, 1 if existing else 0)
        if was != "done" and holder == ASIDE:
            messages = notifications(scope, queue, group, name, meta, error=why, cancelled=True)
            told.keys += messages.keys
            told.argv += messages.argv
            told.counter = messages.counter or told.counter
    ordering, key = meta.get("ordering_key"), meta.get("key")
    # A moved task keeps the position in the order of its former entry.
    in_order = ordering if isinstance(ordering, str) and MOVED_FROM not in meta else ""
    return Script(
        "cancel",
        (
            *(place.stream, keys.cancelled(queue), keys.settled, keys.awaited(first)),
            *(keys.stats(queue), keys.order(queue, place.priority)),
            keys.seen(first, key) if isinstance(key, str) else keys.stats(queue),
            *(keys.bell(queue), *groups, *told.keys),
        ),
        (
            *(place.entry, place.mark, name, by, why, kept, in_order, ASIDE, told.counter),
            *(len(states), *words, *told.argv),
        ),
        writes=True,
    )


def _wake_ordered(
    scope: Scope, queue: str, place: _Spot, states: Mapping[str, str], meta: Mapping[str, Any]
) -> Op[None]:
    """Let the next task with the same ordering key start."""
    keys = scope.keys
    first, _, tier = split(meta.get(MOVED_FROM, place.mark))
    if isinstance(meta.get("ordering_key"), str):
        for group in filter(None, states):
            yield Script(
                "wake_ordered",
                (
                    *(keys.queue(queue, tier), keys.order(queue, tier)),
                    *(keys.retries(queue, group, tier), keys.bell(queue)),
                    *(keys.queue(queue, RETRY), keys.retries(queue, group, RETRY)),
                    keys.moved(queue),
                ),
                (group, suffix(queue, tier), first, meta["ordering_key"]),
                writes=True,
            )


def _check_flow(task: Address, meta: Mapping[str, Any], flow: str | None) -> None:
    """Raise `Refused` for a task that is not part of the flow whose record names it."""
    if flow is not None and meta.get("flow") != flow:
        raise Refused(
            f"the task {task.id!r} is not part of the flow {flow!r}", hint="cancel it by its id"
        )


def _not_ready(scope: Scope, task: Address, why: str, kept: int, flow: str | None) -> Op[bool]:
    """Cancel a task that is delayed or waits for others; return whether it was."""
    keys, queue, name = scope.keys, task.queue, task.id
    delayed, dependent = yield Batch(
        [("HGET", keys.bodies(queue), name), ("HGET", keys.after_bodies(queue), name)]
    )
    if delayed is None and dependent is None:
        return False
    of = (delayed, results.DELAYED) if delayed is not None else (dependent, results.DEPENDENT)
    words = results.read(*of)[of[1] :]
    meta = _decoded(envelope.decode, [word.encode() for word in words])
    _check_flow(task, meta, flow)
    groups = sorted((yield from working(scope, queue)) - {ROUTER}) or ["default"]
    group = groups[0] if len(groups) == 1 else "default"
    others = notifications(scope, queue, group, name, meta, error=why, cancelled=True)
    key = meta.get("key")
    step = Script(
        "cancel_delayed",
        (
            *(keys.delayed(queue), keys.bodies(queue), keys.after(queue), keys.after_bodies(queue)),
            *(keys.settled, keys.awaited(queue), keys.stats(queue)),
            keys.seen(queue, key) if isinstance(key, str) else keys.stats(queue),
            *(keys.result(name, group_name) for group_name in groups),
            *others.keys,
        ),
        (name, why, kept, others.counter, len(groups), *others.argv),
        writes=True,
    )
    revoked = yield step
    yield from passed_on(scope)
    # A first attempt whose reply was lost may have removed the task.
    return bool(revoked) or step.sendings > 1


def _confirm_cancelled(scope: Scope, task: Address, policies: Policies) -> Op[Cancelled]:
    """Return that a task was already cancelled. Raises `NotFound`, and `Refused` if it ended otherwise."""
    groups = yield from task_state.groups_at(scope, task.queue, task.priority)
    for group in sorted(groups) or ["default"]:
        state = yield from task_state.task(scope, task.id, group, policies)
        if state.state == "cancelled":
            return Cancelled(task.id, task.queue, "cancelled", ())
    raise Refused(
        f"the task {task.id!r} is {state.state}, and cannot be cancelled any more",
        hint=f"see bus.task({task.id!r})",
        shell_hint=f"see 'agentbus task show {task.id}'",
    )


def _meta(place: _Spot, flat: Any) -> dict[str, Any]:
    decode = retry_stream.decode if place.priority == RETRY else envelope.decode
    return _decoded(decode, flat)


def _decoded(decode: Callable[[Any], Any], flat: Any) -> dict[str, Any]:
    """Return the envelope of a task; empty if it is malformed."""
    try:
        meta: dict[str, Any] = decode(flat or [])[1]
    except (ValueError, UnicodeDecodeError):
        return {}
    return meta
