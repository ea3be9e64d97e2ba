"""One task: its state, its attempts and errors, its payload, and the tasks around it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.errors import NotFound
from agentbus.core.names import word
from agentbus.dashboard.letter_boxes import first_line
from agentbus.dashboard.web import graphs
from agentbus.dashboard.web.page import PageView, TextFile, WebPage
from agentbus.queues.ids import taker

if TYPE_CHECKING:
    from agentbus.dashboard.task_chain import ChainTask, TaskReport
    from agentbus.queues.task_state import TaskState

# Factors for `PageView.shared`: of the tasks that a task has caused, which take the server longest
# to read; and of the task itself, whose reading mostly waits for other requests.
_REST, _TASK_REST = 40.0, 1.0
# States in which a task can be cancelled.
_OPEN = ("waiting", "delayed", "blocked", "running", "retrying")
# Fields of the envelope whose names are those of other facts.
_NAMED = {"task": "name", "attempts": "limit of attempts"}
# Fields of the envelope that the page shows elsewhere.
_ELSEWHERE = ("id", "created_at", "trail")


async def load(view: PageView) -> dict[str, Any]:
    """Return the task with the id `id`, in the group `group`."""
    found = await _found(view)
    state = found.state
    chain = await view.shared(
        ("chain", state.id, state.group),
        lambda: view.dashboard.chain(state.id, group=state.group),
        _REST,
        behind=True,
    )
    # The chain may be a few seconds old.
    chain = replace(chain, tasks=tuple(_as_read(one, state) for one in chain.tasks))

    def link(one: ChainTask) -> str:
        return view.link("task", id=one.id, group=one.group)

    tasks = [
        (one, link(one) if one.queue is not None else "", graphs.links_of(chain, one.id))
        for one in chain.tasks
    ]
    envelope = {
        _NAMED.get(name, name.replace("_", " ")): value
        if isinstance(value, str)
        else as_json(value)
        for name, value in state.envelope.items()
        if name not in _ELSEWHERE
    }
    return {
        "title": f"Task {state.id}",
        "found": found,
        "task": state,
        "payload": as_json(state.payload),
        "result": as_json(found.result),
        "envelope": envelope,
        "trail": " → ".join(map(_passed, found.trail)),
        "by_hand": taker(state.worker) if state.state == "running" else None,
        "is_open": state.state in _OPEN,
        "chain": graphs.chain(chain, state.id, link),
        "complete": chain.complete,
        "tasks": tasks,
    }


async def payload(view: PageView) -> tuple[str, str]:
    """Return the payload of a task."""
    found = await _found(view)
    return f"payload {found.state.id}", as_json(found.state.payload) + "\n"


async def result(view: PageView) -> tuple[str, str]:
    """Return the result of a task."""
    found = await _found(view)
    return f"result {found.state.id}", as_json(found.result) + "\n"


def as_json(value: object) -> str:
    """Return a value as JSON over several lines."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


async def _found(view: PageView) -> TaskReport:
    task = view.param("id")
    if not task:
        raise NotFound("the address names no task", hint="search one by its id")
    group = view.param("group") or None
    return await view.shared(
        ("task", task, group), lambda: view.dashboard.task(task, group=group), _TASK_REST
    )


def _as_read(one: ChainTask, state: TaskState) -> ChainTask:
    """Return a chain's task; if it is the page's task, with the newer state."""
    if (one.id, one.group) != (state.id, state.group):
        return one
    error = None if state.error is None else first_line(state.error)
    return replace(one, state=state.state, error=error)


def _passed(one: object) -> str:
    # A router records a pair of the agent and the time.
    return word(str(one[0] if isinstance(one, list) and one else one))


# No stream reports the changes of a single task, so the page reads the task this often.
_EVERY = 0.2

PAGE = WebPage(
    "task", "Task", load, live=("state", "attempts", "around"), under="tasks", every=_EVERY
)
PAYLOAD = TextFile("payload", payload)
RESULT = TextFile("result", result)
