"""flow: show, cancel and replay flows of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.commands import _format, _together
from agentbus.commands._bare import actions
from agentbus.commands._declare import Call, Param, Verb
from agentbus.core.clock import rfc3339
from agentbus.core.errors import UsageError
from agentbus.core.names import word
from agentbus.tasks.flows import Flows

if TYPE_CHECKING:
    from agentbus.tasks import FlowState, FlowTaskState

VERB = Verb(
    "flow",
    actions(
        {
            "list": "Print a line for each flow, the newest first.",
            "show FLOW": "Print a line for each task of a flow.",
            "cancel FLOW": "Cancel its tasks that have not ended, and undo those that were done.",
            "replay FLOW": "Publish its tasks again that were not done.",
        }
    ),
    Param("FLOW", "The flow.", values="flow"),
    text="Programs publish flows: agentbus.tasks.Flows(bus).publish(chain(...)). The state of a flow is"
    " running, compensating (tasks that undo others run), done, failed, cancelled, compensated (all that"
    " was done is undone) or compensation_failed. A flow is shown for a day after it is done, and for 30"
    " days after it has ended otherwise. After a compensation, replay publishes all its tasks. Exit 4 to"
    " cancel one that has ended, or to replay one that is done or has not ended; 5 if the flow does not"
    " exist. JSON: flow, state, size, done, failed, cancelled, run, group, agent_id, timestamp, ended; for"
    " show, cancel and replay also tasks (number, name, queue, task_id, state, error, after, undo_id,"
    " undo_state).",
    examples=(
        "agentbus flow list",
        "agentbus flow show order-17",
        "agentbus flow cancel order-17",
        "agentbus flow replay order-17 --json",
    ),
    subject="flow",
)
_COLUMNS: dict[str, Callable[[FlowState], str]] = {
    "FLOW": lambda flow: word(flow.id),
    "STATE": lambda flow: flow.state,
    "TASKS": lambda flow: str(flow.size),
    "DONE": lambda flow: str(flow.done),
    "FAILED": lambda flow: str(flow.failed or "-"),
    "CANCELLED": lambda flow: str(flow.cancelled or "-"),
    "CREATED": lambda flow: rfc3339(int(flow.created)),
    "ENDED": lambda flow: "-" if flow.ended is None else rfc3339(int(flow.ended)),
}
_OF_TASKS: dict[str, Callable[[FlowTaskState], str]] = {
    "NUMBER": lambda task: str(task.number),
    "NAME": lambda task: word(task.name),
    "TASK": lambda task: task.id,
    "AFTER": lambda task: ",".join(map(str, task.after)) or "-",
    "STATE": lambda task: task.state,
    "UNDO": lambda task: task.undo_state or "-",
    "ERROR": lambda task: task.error or "-",
}


def run(call: Call) -> None:
    """Run the action."""
    args = call.args
    _together.check(VERB, args)
    if (args.flow is None) is not (args.action == "list"):
        what = "nothing" if args.action == "list" else "the id of a flow"
        raise UsageError(f"flow {args.action} takes {what}", hint="see 'agentbus help flow'")
    flows: Flows[Any] = Flows(call.bus)
    if args.action == "list":
        _format.show(call.out, flows.list(), _COLUMNS, _fields, left=2)
        return
    state: FlowState = getattr(flows, args.action)(args.flow)
    record = {**_fields(state), "tasks": [_task(task) for task in state.tasks]}
    call.out.record(record, _summary(state))
    if not call.out.json:
        _format.show(call.out, state.tasks, _OF_TASKS, left=len(_OF_TASKS))


def _summary(flow: FlowState) -> str:
    said = [f"{flow.done} of {flow.size} tasks done"]
    said += [f"{flow.failed} failed"] if flow.failed else []
    said += [f"{flow.cancelled} cancelled"] if flow.cancelled else []
    return f"{word(flow.id)} {flow.state.replace('_', ' ')}: {', '.join(said)}"


def _task(task: FlowTaskState) -> dict[str, Any]:
    names = ("number", "name", "queue", "state", "error", "undo_id", "undo_state")
    fields = {name: getattr(task, name) for name in names}
    return {**fields, "task_id": task.id, "after": [*task.after]}


def _fields(flow: FlowState) -> dict[str, Any]:
    names = ("state", "size", "done", "failed", "cancelled", "run", "group", "agent_id")
    ended = None if flow.ended is None else rfc3339(flow.ended, milliseconds=True)
    return {
        "flow": flow.id,
        **{name: getattr(flow, name) for name in names},
        "timestamp": rfc3339(flow.created, milliseconds=True),
        "ended": ended,
    }
