"""The bound of a queue: room that is made in a full one, and the error where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import QueueFull, UsageError
from agentbus.core.stream import text
from agentbus.queues.retry_stream import make_room

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Where the arguments of the scripts say that the caller makes room if it can.
ASKS = 0


def trims(on_full: str) -> bool:
    """Return whether the oldest tasks make room at the bound. Raises `UsageError`."""
    if on_full not in ("refuse", "trim"):
        raise UsageError(f"on_full is {on_full!r}", hint="use 'refuse' or 'trim'")
    return on_full == "trim"


def refused(
    scope: Scope, queue: str, priority: str, bound: int, argv: list[Any], reply: Sequence[Any]
) -> Op[None]:
    """Make room after a refusal, and change the script's arguments for another try; raises `QueueFull`."""
    if not argv[ASKS] or not reply[3]:
        raise full(queue, bound, reply)
    argv[ASKS] = int((yield from make_room(scope, queue, priority, reply)))


def full(queue: str, bound: int, reply: Sequence[Any]) -> QueueFull:
    """Return the error of a script's reply: the number of tasks, the group that blocks, and the oldest."""
    group, oldest, number = text(reply[2]), text(reply[3]), int(reply[1])
    tasks = "task" if number == 1 else "tasks"
    if oldest:
        reader = f"the group {group!r}" if group else "a reader outside of groups"
        return QueueFull(
            f"the queue {queue!r} keeps {number} {tasks}, because {reader} has not finished"
            f" {oldest}; ten times its limit of {bound} are kept",
            hint="wait until it is finished, or cancel it",
        )
    return QueueFull(
        f"the queue {queue!r} holds {number} unfinished {tasks}; the limit is {bound}"
        + (f"; the group {group!r} has not finished the oldest" if group else ""),
        hint=f"start workers{f' of the group {group!r}' if group else ''}, wait, or raise its bound",
    )
