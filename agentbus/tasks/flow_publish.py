"""Publishes the tasks of a flow with its record, in one atomic step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.errors import AgentBusError, Refused, UsageError
from agentbus.core.stream import text
from agentbus.queues import attempts, tracing
from agentbus.queues.dependents import place_of
from agentbus.queues.ids import RETRY, suffix, writable
from agentbus.queues.publish import date, make_room_or_raise, stored_fields
from agentbus.store.scope import server_time
from agentbus.store.steps import Batch, Script
from agentbus.tasks.flow_record import tasks_in

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op
    from agentbus.tasks.flow_record import FlowState, Planned

# Maximum number of dependencies in a flow.
_MOST_WAITS = 10_000
# Index in a task's body at which the fields and values of its entry begin.
_WORDS = 5


@dataclass(frozen=True, slots=True)
class _Sent:
    """A task that is published: its number in the flow, its record, and its dependencies' numbers."""

    number: int
    task: dict[str, Any]
    waits: tuple[int, ...]

    @property
    def place(self) -> tuple[str, str]:
        """Its queue and its priority."""
        return self.task["queue"], self.task["body"][0]


def publish(
    scope: Scope, policies: Policies, tasks: Sequence[Planned], flow: str, group: str
) -> Op[str]:
    """Publish the tasks of a new flow, and return its id; do nothing if it exists. Raises `QueueFull`."""
    undos = [one.undo for one in tasks if one.undo is not None]
    if sum(len(one.after) for one in tasks) > _MOST_WAITS:
        raise UsageError(
            f"the tasks of the flow {flow!r} wait for one another more than {_MOST_WAITS:,} times",
            hint="put a task between two large groups",
        )
    for one in (*tasks, *undos):
        writable(one.queue)
    ids = yield from _reserved(scope, [one.queue for one in (*tasks, *undos)])
    own, of_undos = ids[: len(tasks)], iter(ids[len(tasks) :])
    about: dict[str, str | int] = {
        "agentbus.flow": flow,
        "messaging.batch.message_count": len(tasks),
    }
    span = tracing.begin("flow", flow, **about)
    sent = []
    yield from date(scope, [member.task for member in (*tasks, *undos)])
    for number, (one, task_id) in enumerate(zip(tasks, own, strict=True), 1):
        after = [own[place] for place in one.after]
        record = _record(scope, policies, _stamped(one, span), task_id, after, flow, group)
        record["after"] = [place + 1 for place in one.after]
        record["undo"] = None
        if one.undo is not None:
            other = _stamped(one.undo, span)
            undo = _record(scope, policies, other, next(of_undos), [task_id], flow, group)
            record["undo"] = {**undo, "place": place_of(undo["queue"], undo["body"][0])}
        sent.append(_Sent(number, record, tuple(record["after"])))
    places = dict.fromkeys(
        (one.task["undo"]["queue"], one.task["undo"]["body"][0]) for one in sent if one.task["undo"]
    )
    header = (
        *("size", len(tasks), "group", group, "agent_id", scope.agent),
        *("places", orjson.dumps([*places])),
    )
    try:
        if (yield from _send(scope, policies, flow, group, sent, header)) == "published":
            tracing.end(span)
    except AgentBusError as error:
        tracing.end(span, error)
        raise
    return flow


def publish_again(
    scope: Scope,
    policies: Policies,
    flow: FlowState,
    fields: Mapping[str, str],
    numbers: Sequence[int],
) -> Op[bool]:
    """Publish tasks of an ended flow again; return False if the flow has changed. Raises `QueueFull`."""
    before = dict(enumerate(tasks_in(flow.id, fields), 1))
    chosen = [before[number] for number in numbers]
    undos = [task["undo"] for task in chosen if task["undo"]]
    for task in (*chosen, *undos):
        writable(task["queue"])
    ids = yield from _reserved(scope, [task["queue"] for task in (*chosen, *undos)])
    own, of_undos = dict(zip(numbers, ids, strict=False)), iter(ids[len(chosen) :])
    now = round((yield from server_time(scope)), 3)
    sent = []
    for number, task in zip(numbers, chosen, strict=True):
        after = [own.get(other) or before[other]["id"] for other in task["after"]]
        new = _again(task, own[number], after, now)
        if task["undo"]:
            new["undo"] = _again(task["undo"], next(of_undos), [own[number]], now)
        waits = tuple(other for other in task["after"] if other in own)
        sent.append(_Sent(number, new, waits))
    reply = yield from _send(scope, policies, flow.id, flow.group, sent, (), run=str(flow.run))
    if reply == "published":
        yield from _mark_letters(scope, policies, flow.group, zip(chosen, sent, strict=True))
    return reply == "published"


def _stamped(one: Planned, span: Span | None) -> Planned:
    return replace(one, task=tracing.stamped(one.task, span))


def _reserved(scope: Scope, queues: Sequence[str]) -> Op[list[str]]:
    """Return a new task id for each of these queues, in order."""
    keys = scope.keys
    counted = [
        ("HINCRBY", keys.stats(queue), "scheduled", n) for queue, n in Counter(queues).items()
    ]
    # One by one: a publisher may increment the counter, and not set it.
    numbers = yield Batch([*(("INCR", keys.ids(queue)) for queue in queues), *counted])
    for number in numbers[: len(queues)]:
        if not isinstance(number, int):
            raise number
    return [
        f"d{number}{suffix(queue, 'normal')}"
        for queue, number in zip(queues, numbers, strict=False)
    ]


def _record(
    scope: Scope,
    policies: Policies,
    one: Planned,
    task_id: str,
    after: Sequence[str],
    flow: str,
    group: str,
) -> dict[str, Any]:
    """Return the record of a task: the fields to show, and its body in the form of a dependent's."""
    policy = policies.policy_of(one.queue)
    more: dict[str, Any] = {"flow": flow}
    if after:
        more["after"] = after
        if group != "default":
            more["after_group"] = group
    priority, words, _, ordering = stored_fields(scope, one.task, policy.tier, None, None, more)
    letters, kept = policy.dead_letters or one.queue, str(math.ceil(policy.results))
    body = [priority, ordering or "", "", letters, kept]
    body += [word if isinstance(word, str) else word.decode() for word in words]
    return {"id": task_id, "name": one.name, "queue": one.queue, "group": group, "body": body}


def _again(task: dict[str, Any], task_id: str, after: Sequence[str], now: float) -> dict[str, Any]:
    """Return the record of a task that is published again under a new id."""
    body = [*task["body"]]
    at = body.index("meta", _WORDS + 2) + 1
    meta = orjson.loads(body[at]) | {"created_at": now}
    if after:
        meta["after"] = after
    body[at] = orjson.dumps(meta).decode()
    return {**task, "id": task_id, "body": body}


def _send(
    scope: Scope,
    policies: Policies,
    flow: str,
    group: str,
    sent: Sequence[_Sent],
    header: Sequence[Arg],
    run: str = "",
) -> Op[str]:
    """Publish tasks, and return `published`, `exists` or `changed`. Raises `QueueFull`."""
    keys, once = scope.keys, scope.once()
    numbers = Counter(one.place for one in sent)
    places = [*numbers]
    bounds = [policies.policy_of(queue).bound for queue, _ in places]
    indices = {one.number: at for at, one in enumerate(sent, 1)}
    argv: list[Any] = [
        *(1, flow, once.token, group, run, len(places), len(sent), len(header), *header),
        *(
            word
            for place, bound in zip(places, bounds, strict=True)
            for word in (place[0], bound, numbers[place])
        ),
    ]
    for one in sent:
        body = orjson.dumps(one.task["body"])
        argv += (
            one.number,
            places.index(one.place) + 1,
            one.task["id"],
            orjson.dumps(one.task),
        )
        argv += (body, len(one.waits), *(indices[other] for other in one.waits))
    while True:
        step = Script(
            "flow",
            (
                *(*keys.flow(flow), once.key, keys.queues, keys.metrics),
                *(key for place in places for key in _keys_of(scope, *place)),
            ),
            argv,
            writes=True,
        )
        reply = yield step
        if reply[0] != b"full":
            break
        place, bound = places[int(reply[4]) - 1], bounds[int(reply[4]) - 1]
        yield from make_room_or_raise(scope, *place, bound, argv, reply)
    scope.free_slot(once, step)
    if reply[0] == b"taken":
        raise Refused(
            f"another program stored something under the task id {text(reply[1])!r}",
            hint="publish the flow again: its tasks get other ids",
        )
    return text(reply[0])


def _keys_of(scope: Scope, queue: str, priority: str) -> tuple[str, ...]:
    keys = scope.keys
    return (
        *(keys.queue(queue, priority), keys.order(queue, priority), keys.stats(queue)),
        *(keys.after(queue), keys.after_bodies(queue), keys.delayed(queue), keys.bodies(queue)),
        *(keys.bell(queue), keys.awaited(queue), keys.readers(queue, priority)),
        *(keys.queue(queue, RETRY), keys.ids(queue)),
    )


def _mark_letters(
    scope: Scope,
    policies: Policies,
    group: str,
    pairs: Iterable[tuple[dict[str, Any], _Sent]],
) -> Op[None]:
    """Mark the dead letters of republished tasks as replayed; nothing depends on these marks."""
    both = [*pairs]
    kept = yield Batch([("GET", scope.keys.result(old["id"], group)) for old, _ in both])
    steps: list[tuple[Arg, ...]] = []
    for (old, new), stored in zip(both, kept, strict=True):
        letter = (attempts.burial(stored) or ("",))[0] if isinstance(stored, bytes) else ""
        if letter and "@" not in letter:
            key = scope.keys.replayed(policies.letters_of(old["queue"]), group)
            steps.append(("HSET", key, letter, new.task["id"]))
    if steps:
        yield Batch(steps)
