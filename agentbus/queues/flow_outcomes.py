"""Records the outcomes of a flow's tasks, and publishes those that undo others once it has failed.

In the index of dependents each task of a flow has one member more, in the place of a dependent:
`flow <number> <flow>`, or `undo <number> <flow>` for a task that undoes the one of this number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core.names import unescape
from agentbus.queues.attempts import is_cancelled
from agentbus.queues.ids import RESULT_KEPT
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, Script, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Seconds for which a flow is kept that failed or was cancelled, and may be replayed; and the results of the
# tasks of all, for those that follow.
KEPT = 30 * 86_400
_MEMBER = r"(?s)(flow|undo) ([1-9]\d{0,3}) (.+)"
_FIELDS = {"flow": "end", "undo": "undo"}


def watched(dependent: str) -> bool:
    """Return whether a dependent in the index stands for the flow of the other task, and not for a task."""
    return _member(dependent) is not None


def _member(dependent: str) -> re.Match[str] | None:
    return re.fullmatch(_MEMBER, dependent)


def conclude(scope: Scope, mark: tuple[str, str, str], verdict: str) -> Op[None]:
    """Record the outcome of a task for its flow. Atomic, and done once.

    `mark` is the recorded outcome's field, the prefix of its members, and the member.
    """
    field, _, member = mark
    found = _member(member.rpartition("\n")[2][2:])
    assert found is not None
    kind, number, flow = map(str, found.groups())
    task_id, _, group = field.partition("\n")
    # A dependent that was buried is recorded for all groups.
    group = group or member.split("\n")[1]
    keys = scope.keys
    index = keys.awaited(unescape(task_id.partition("@")[2].partition(":")[0]))
    record, flows = keys.flow(flow)
    stored = yield from or_empty(one_step(Command("HGET", record, "places")), None)
    places = _places(stored)
    cancelled = int(is_cancelled(verdict))
    ends: list[str] = [place_of(*place) for place in places]
    yield Script(
        "conclude",
        (
            *(keys.settled, index, record, flows),
            keys.result(task_id, group),
            *(key for queue, priority in places for key in _keys_of(scope, queue, priority)),
        ),
        (*mark, verdict, _FIELDS[kind], number, flow, cancelled, RESULT_KEPT, KEPT, *ends),
        writes=True,
    )


def place_of(queue: str, priority: str) -> str:
    """Return how a record names the stream to which a task goes."""
    return f"{priority} {queue}"


def _keys_of(scope: Scope, queue: str, priority: str) -> tuple[str, ...]:
    keys = scope.keys
    return (
        *(keys.queue(queue, priority), keys.order(queue, priority), keys.delayed(queue)),
        *(keys.bodies(queue), keys.bell(queue), keys.awaited(queue)),
    )


def _places(stored: bytes | None) -> list[tuple[str, str]]:
    """Return the queues and priorities of the tasks that undo others."""
    try:
        found: Any = orjson.loads(stored or b"[]")
        return [(str(queue), str(priority)) for queue, priority in found]
    except (ValueError, TypeError):
        # Another program wrote it.
        return []
