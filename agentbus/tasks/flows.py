"""Flows: several tasks published, shown, cancelled and replayed as one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import NotFound, Refused
from agentbus.core.stream import text
from agentbus.queues import attempts, cancel, results, task_state
from agentbus.store.failures import or_empty
from agentbus.store.steps import Batch, Command, ServerReply, one_step
from agentbus.store.verb import BusT_co, OnBus, Patient, verb
from agentbus.tasks import flow_record
from agentbus.tasks.flow_publish import publish, publish_again
from agentbus.tasks.flow_record import (
    ENDED,
    FIELDS,
    MOST_TASKS,
    Flow,
    FlowState,
    FlowTask,
    FlowTaskState,
    chain,
    planned,
    words_of,
)

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.tasks.typed_task import Item

_PAGE = 500


class Flows(OnBus[BusT_co]):
    """The flows of the project of a `Bus` or an `AsyncBus`; on an `AsyncBus`, its methods are awaited.

    `chain` and `group` create a flow. Its record is kept while it runs, for a day after it is done, and for
    30 days after any other end.
    """

    def __init__(self, bus: BusT_co) -> None:
        on: Any = bus
        self._scope: Scope = on.scope
        self._run, self._iterate = on._run, on._iterate
        self._policies: Policies = on.runner.policies
        self._bus, self._sharded = on, on._sharded

    @verb
    def publish(
        self, flow: Flow | FlowTask | Item[Any], *, id: str | None = None, group: str = "default"
    ) -> Op[str]:
        """Publish all tasks of a flow or none, and return the flow's id. Atomic.

        If a flow with the given `id` exists, it is returned and nothing is published. A task is done when
        the consumer group `group` has acknowledged it. When a task becomes dead, so do its dependents. Once
        all tasks have ended, if one was not done, the `undo` tasks of the done ones run one by one, the
        last task's first; each gets the result of the task that it compensates. A compensation that becomes
        dead does not stop the others. Raises `QueueFull`, `InvalidPayload`, `UsageError`.
        """
        tasks = planned(flow if isinstance(flow, Flow) else chain(flow))
        if self._sharded is not None:
            undone = (task.undo for task in tasks)
            queues = {task.queue for task in (*tasks, *undone) if task is not None}
            self._sharded.check(self._bus, sorted(queues), "a flow")
        given = names.name("flow", id) if id is not None else secrets.token_hex(6)
        group = names.name("group", group)
        return publish(self._scope, self._policies, tasks, given, group)

    @verb
    def results(self, id: str, wait: float | None = None) -> Patient[list[Any]]:
        """Return the results of a flow's final tasks, on which no other task depends, in order.

        Waits at most `wait` seconds for them. Raises `NotFound`, `TaskBuried`, `TaskCancelled`, `TimedOut`.
        """
        return Patient(_results(self._scope, self._policies, id, wait), wait or 0.0)

    @verb
    def show(self, id: str) -> Op[FlowState]:
        """Return a flow with its tasks. Raises `NotFound`."""
        return shown(self._scope, self._policies, id)

    @verb
    def list(self) -> Op[list[FlowState]]:
        """Return all flows, newest first, without their tasks."""
        return _listed(self._scope)

    @verb
    def cancel(self, id: str) -> Op[FlowState]:
        """Cancel the unfinished tasks of a flow, the last first, and return the flow.

        Workers are asked to stop running tasks. Once all tasks have ended, the done ones are compensated.
        Idempotent. Raises `NotFound`, and `Refused` for a flow that has ended or is being compensated.
        """
        return _cancel(self._scope, self._policies, id)

    @verb
    def replay(self, id: str) -> Op[FlowState]:
        """Publish the tasks of an ended flow that were not done again, and return the flow. Atomic.

        They get the results of the done tasks. After a compensation, all tasks are published again. Raises
        `NotFound`, `Refused` for a flow that is done or has not ended, and `QueueFull`.
        """
        return _replay(self._scope, self._policies, id)


def _listed(scope: Scope) -> Op[list[FlowState]]:
    index = scope.keys.flow("")[1]
    all_ids = [
        text(flow) for flow in (yield from or_empty(one_step(Command("ZRANGE", index, 0, -1)), []))
    ]
    found = yield from states(scope, all_ids)
    return sorted(found, key=lambda state: (-state.created, state.id))


def states(scope: Scope, all_ids: Sequence[str]) -> Op[list[FlowState]]:
    """Return the flows with these ids, without their tasks; those that are gone are left out."""
    listed = []
    for at in range(0, len(all_ids), _PAGE):
        page = all_ids[at : at + _PAGE]
        replies = yield Batch([("HMGET", scope.keys.flow(flow)[0], *FIELDS) for flow in page])
        for flow, reply in zip(page, replies, strict=True):
            if not isinstance(reply, ServerReply):
                pairs = zip(FIELDS, reply, strict=True)
                fields = {name: text(value) for name, value in pairs if value is not None}
                state = flow_record.read(flow, fields)
                listed += [] if state is None else [state]
    return listed


def _record(scope: Scope, flow: str) -> Op[tuple[FlowState, dict[str, str]]]:
    """Return a flow, and the fields of its record. Raises `NotFound`."""
    names.name("flow", flow)
    asked = one_step(Command("HGETALL", scope.keys.flow(flow)[0]))
    fields = words_of((yield from or_empty(asked, [])))
    state = flow_record.read(flow, fields)
    if state is None:
        raise NotFound(
            f"the flow {flow!r} does not exist",
            hint="Flows(bus).list() returns all",
            shell_hint="see 'agentbus flow list'",
        )
    return state, fields


def shown(scope: Scope, policies: Policies, flow: str, most: int = MOST_TASKS) -> Op[FlowState]:
    """Return a flow with its tasks. Of those that may run, at most `most` are read. Raises `NotFound`."""
    flow_state, fields = yield from _record(scope, flow)
    tasks = flow_record.tasks_in(flow, fields)
    keys = scope.keys
    waits = yield Batch([("ZSCORE", keys.after(task["queue"]), task["id"]) for task in tasks])
    listed = []
    for number, (task, held) in enumerate(zip(tasks, waits, strict=True), 1):
        outcome = fields.get(f"end {number}")
        if outcome is None:
            state = "blocked" if isinstance(held, bytes) else None
            error = None
            if state is None and most <= 0:
                state = "unknown"
            elif state is None:
                most -= 1
                state, error = yield from _state(scope, policies, task["id"], flow_state.group)
        else:
            state, error = _ended(outcome)
        undo = task["undo"]
        listed.append(
            FlowTaskState(
                number=number,
                name=task["name"],
                queue=task["queue"],
                id=task["id"],
                state=state,
                error=error,
                after=tuple(task["after"]),
                undo_id=undo and undo["id"],
                undo_state=undo and _undone(flow_state, fields, number),
            )
        )
    return replace(flow_state, tasks=tuple(listed))


def _state(
    scope: Scope, policies: Policies, task_id: str, group: str
) -> Op[tuple[str, str | None]]:
    """Return the state and the last error of a task whose end the flow has not recorded yet."""
    try:
        task = yield from task_state.task(scope, task_id, group, policies)
    except NotFound:
        return "unknown", None
    return task.state, task.error


def _ended(outcome: str) -> tuple[str, str | None]:
    """Return the state and the error of a task from its recorded outcome."""
    if outcome == "+":
        return "done", None
    return ("cancelled" if attempts.is_cancelled(outcome) else "dead"), outcome[1:]


def _undone(flow: FlowState, fields: Mapping[str, str], number: int) -> str | None:
    outcome = fields.get(f"undo {number}")
    if outcome is not None:
        return "done" if outcome == "+" else "failed"
    if flow.state == "compensating" and fields.get("undoing") == str(number):
        return "running"
    waits = flow.state not in ENDED and fields.get(f"end {number}", "+") == "+"
    return "waiting" if waits else None


def _results(scope: Scope, policies: Policies, flow: str, wait: float | None) -> Op[list[Any]]:
    state, fields = yield from _record(scope, flow)
    tasks = flow_record.tasks_in(flow, fields)
    followed = {number for task in tasks for number in task["after"]}
    until = scope.monotonic() + (wait or 0.0)
    returned = []
    for number, task in enumerate(tasks, 1):
        if number not in followed:
            left = max(0.0, until - scope.monotonic()) if wait else None
            result = yield from results.result(scope, task["id"], left, state.group, policies)
            returned.append(result)
    return returned


def _cancel(scope: Scope, policies: Policies, flow: str) -> Op[FlowState]:
    state, fields = yield from _record(scope, flow)
    if state.state != "running":
        raise Refused(
            f"the flow {flow!r} is {_said(state.state)}, and cannot be cancelled any more",
            hint="Flows(bus).show() returns its tasks",
            shell_hint=f"see 'agentbus flow show {names.shell_word(flow)}'",
        )
    tasks = [*enumerate(flow_record.tasks_in(flow, fields), 1)]
    # Cancel dependents first: otherwise they would become dead with the tasks that they wait for.
    for number, task in reversed(tasks):
        if f"end {number}" not in fields:
            try:
                yield from cancel.cancel(scope, task["id"], policies, flow=flow)
            except (Refused, NotFound):
                # It has ended meanwhile, or another program changed the record.
                continue
    return (yield from shown(scope, policies, flow))


def _replay(scope: Scope, policies: Policies, flow: str) -> Op[FlowState]:
    while True:
        state, fields = yield from _record(scope, flow)
        if state.state not in ENDED or state.state == "done":
            raise Refused(
                f"the flow {flow!r} is {_said(state.state)}, and cannot be replayed",
                hint="replay one that has failed, or was cancelled",
            )
        undone = state.state.startswith("compensat")
        again = [
            number
            for number in range(1, state.size + 1)
            if undone or fields.get(f"end {number}") != "+"
        ]
        if (yield from publish_again(scope, policies, state, fields, again)):
            return (yield from shown(scope, policies, flow))


def _said(state: str) -> str:
    return state.replace("_", " ")
