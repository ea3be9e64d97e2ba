"""The parts of a flow, and its record on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agentbus.core.errors import Refused, UsageError
from agentbus.core.stream import text
from agentbus.queues.ids import PRIORITIES
from agentbus.queues.task import Task
from agentbus.tasks.typed_task import Item

MOST_TASKS = 1000
# States of a flow that has ended.
ENDED = ("done", "failed", "cancelled", "compensated", "compensation_failed")


@dataclass(frozen=True, slots=True)
class FlowTask:
    """A task of a flow: a call of a typed task (`send.item(mail)`), or a payload or `Task` for a queue.

    `undo` is its compensation, which runs if the task was done and the flow fails or is cancelled. `name`
    is shown instead of the typed task's or queue's name.
    """

    payload: Any
    queue: str | None = None
    undo: FlowTask | Item[Any] | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """Tasks that run one after the other or concurrently, created by `chain` and `group`."""

    parts: tuple[Any, ...]
    in_order: bool


def chain(*parts: FlowTask | Item[Any] | Flow) -> Flow:
    """Return a flow whose parts run one after the other; each begins when the preceding tasks are done.

    Each task gets the results of its dependencies (`delivery.results()`). Raises `UsageError`.
    """
    return _checked(Flow(parts, in_order=True))


def group(*parts: FlowTask | Item[Any] | Flow) -> Flow:
    """Return a flow whose parts run concurrently. Raises `UsageError`."""
    return _checked(Flow(parts, in_order=False))


@dataclass(frozen=True, slots=True)
class Planned:
    """A task in the plan of a flow: what to publish, its dependencies, and its compensation."""

    name: str
    queue: str
    task: Task
    after: tuple[int, ...]
    undo: Planned | None


def planned(flow: Flow) -> list[Planned]:
    """Return the tasks of a flow in an order in which each follows its dependencies.

    `after` has the positions of the dependencies in the list. Raises `UsageError`.
    """
    tasks: list[Planned] = []
    _plan(flow, (), tasks)
    if len(tasks) > MOST_TASKS:
        raise UsageError(
            f"the flow has {len(tasks):,} tasks; the limit is {MOST_TASKS:,}",
            hint="publish a further flow from its last task",
        )
    return tasks


@dataclass(frozen=True, slots=True)
class FlowTaskState:
    """A task of a flow. `after` are the numbers of its dependencies.

    `state` is as in `TaskState`, or `blocked` while the task waits for others; `error` is the reason of
    its failure. `undo_id` is the task that compensates it, and `undo_state` is `waiting`, `running`, `done`
    or `failed`; both are None without a compensation.
    """

    number: int
    name: str
    queue: str
    id: str
    state: str
    error: str | None
    after: tuple[int, ...]
    undo_id: str | None
    undo_state: str | None


@dataclass(frozen=True, slots=True)
class FlowState:
    """A flow: `state` is `running`, `compensating`, or the state in which it has ended.

    It ends as `done`, `failed` or `cancelled`; if tasks were compensated, as `compensated`, or as
    `compensation_failed` if a compensation failed. `size` is the number of tasks; `done`, `failed` and
    `cancelled` count the tasks that ended so. `created` and `ended` are in unix seconds. `run` starts at 1
    and grows by 1 with each replay. `tasks` is empty in a list of flows.
    """

    id: str
    state: str
    size: int
    done: int
    failed: int
    cancelled: int
    created: float
    ended: float | None
    run: int
    group: str
    agent_id: str
    tasks: tuple[FlowTaskState, ...]


# Fields that a list of flows needs.
FIELDS = (
    *(
        "state",
        "size",
        "open",
        "failed",
        "cancelled",
        "created",
        "ended",
        "run",
        "group",
        "agent_id",
    ),
    "undoing",
)


def read(flow: str, fields: Mapping[str, str]) -> FlowState | None:
    """Return a flow from its record's fields; None if there is none, or if it is malformed."""
    try:
        size, open_ = int(fields["size"]), int(fields["open"])
        if size > MOST_TASKS:
            return None
        failed, cancelled = (int(fields.get(name) or 0) for name in ("failed", "cancelled"))
        state = fields.get("state") or ("compensating" if fields.get("undoing") else "running")
        return FlowState(
            id=flow,
            state=state,
            size=size,
            done=size - open_ - failed - cancelled,
            failed=failed,
            cancelled=cancelled,
            created=int(fields["created"]) / 1000,
            ended=int(fields["ended"]) / 1000 if fields.get("ended") else None,
            run=int(fields["run"]),
            group=fields["group"],
            agent_id=fields["agent_id"],
            tasks=(),
        )
    except (KeyError, ValueError):
        return None


def tasks_in(flow: str, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records of a flow's tasks, the first one first. Raises `Refused` for an invalid one."""
    try:
        tasks = [orjson.loads(fields[f"task {n}"]) for n in range(1, int(fields["size"]) + 1)]
        for task in tasks:
            undo = task["undo"]
            for record in (task,) if undo is None else (task, undo):
                _check_record(record)
            if not all(type(n) is int and 0 < n <= len(tasks) for n in task["after"]):
                raise ValueError("it waits for a task that the flow does not have")
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"the record of the flow {flow!r} is not valid ({type(error).__name__})",
            hint="another program changed it: publish its tasks again",
        ) from None
    return tasks


def _check_record(task: Mapping[str, Any]) -> None:
    """Raise `ValueError` or `TypeError` unless a task can be shown, and its body published again."""
    words = [*(task[name] for name in ("id", "name", "queue", "group")), *task["body"]]
    if not all(isinstance(word, str) for word in words):
        raise TypeError("a word is not text")
    if task["body"][0] not in PRIORITIES or "meta" not in task["body"][7:]:
        raise ValueError("the body is not that of a task")


def words_of(flat: list[bytes]) -> dict[str, str]:
    """Return a reply to HGETALL as a dict of texts."""
    return {text(flat[at]): text(flat[at + 1]) for at in range(0, len(flat), 2)}


def _checked(flow: Flow) -> Flow:
    if not flow.parts:
        raise UsageError(
            f"a {'chain' if flow.in_order else 'group'} of nothing", hint="give it a task"
        )
    for part in flow.parts:
        if not isinstance(part, (FlowTask, Item, Flow)):
            raise UsageError(
                f"{part!r} is not a part of a flow",
                hint="give calls made by item(...), FlowTask(payload, queue=...), chains or groups",
            )
    return flow


def _plan(part: Any, after: tuple[int, ...], tasks: list[Planned]) -> tuple[int, ...]:
    """Append the tasks of a part, and return the positions of those on which the next part depends."""
    if not isinstance(part, Flow):
        tasks.append(_one(part, after))
        return (len(tasks) - 1,)
    if part.in_order:
        for inner in part.parts:
            after = _plan(inner, after, tasks)
        return after
    return tuple(place for inner in part.parts for place in _plan(inner, after, tasks))


def _one(part: FlowTask | Item[Any], after: tuple[int, ...]) -> Planned:
    given = part if isinstance(part, FlowTask) else FlowTask(part)
    undo = None if given.undo is None else _one(given.undo, ())
    if undo is not None and undo.undo is not None:
        raise UsageError("a task that undoes another is undone itself", hint="leave that out")
    if isinstance(given.payload, Item):
        item = given.payload
        if given.queue is not None:
            raise UsageError("a typed task has its queue already", hint="leave queue= out")
        name, queue = item.of.name, item.of.queue
        task = Task(item.payload, **{**item.envelope, "unique": None})
    else:
        if given.queue is None:
            raise UsageError(
                "a task of a flow has no queue", hint="give FlowTask(payload, queue=...)"
            )
        name = queue = given.queue
        task = given.payload if isinstance(given.payload, Task) else Task(given.payload)
    if task.key is not None or task.unique is not None:
        raise UsageError("a task of a flow has a dedup key", hint="give the flow an id instead")
    return Planned(given.name or name, queue, task, after, undo)
