"""Reads the attempt log: the attempts at one task, and the newest attempts of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentbus.core.stream import text
from agentbus.queues.attempt_log import DONE, RETRIED, unpacked
from agentbus.queues.attempts import Attempt
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, Script, one_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Entries that one script reads, and maximum entries read to find a task.
_AT_ONCE, _MOST = 1000, 10_000
# Outcomes in the log that `Attempt` names differently.
_NAMES = {RETRIED: "failed", "cut_off": "lost", "expired": "dead"}


class EndedTask(NamedTuple):
    """A task of which an attempt ended, at the unix time `at`, as the attempt log names it."""

    id: str
    queue: str
    group: str
    priority: str
    name: str | None
    at: float
    attempt: Attempt


def of_task(scope: Scope, task_id: str, entry: str, group: str, since: float) -> Op[list[Attempt]]:
    """Return the logged attempts at a task in a group, oldest first.

    `entry` is the id of its stream entry, if it is known. The search begins at the unix time `since`, and
    ends with the first attempt that ended the task, or after 10,000 entries.
    """
    key, start, attempts = scope.keys.attempt_log, f"{max(0, int(since * 1000))}-0", []
    quoted = orjson.dumps(task_id).decode()
    for _ in range(_MOST // _AT_ONCE):
        script = one_step(Script("find_attempts", (key,), (start, _AT_ONCE, entry, quoted)))
        reply = yield from or_empty(script, [b""])
        for logged in reply[1:]:
            attempts += [
                task.attempt for task in _ended(logged) if (task.id, task.group) == (task_id, group)
            ]
        start = text(reply[0])
        if not start or (attempts and attempts[-1].outcome in (DONE, "dead", "cancelled")):
            break
    return attempts


def newest(scope: Scope, before: str, entries: int) -> Op[tuple[list[EndedTask], str]]:
    """Return the attempts in the newest entries of the log, newest first, and where to continue.

    `before` is '' at the first call; the returned position is '' at the end of the log.
    """
    asked = Command(
        *("XREVRANGE", scope.keys.attempt_log, f"({before}" if before else "+", "-"),
        *("COUNT", entries),
    )
    page = yield from or_empty(one_step(asked), [])
    tasks = [task for entry in page for task in reversed([*_ended(entry)])]
    return tasks, text(page[-1][0]) if len(page) == entries else ""


def _ended(entry: Any) -> Iterator[EndedTask]:
    """Yield the attempts in an entry; none if another program wrote the entry."""
    entry_id, flat = text(entry[0]), entry[1]
    try:
        log = unpacked(entry_id, dict(zip(flat[::2], flat[1::2], strict=True)))
    except ValueError:
        return
    at = int(entry_id.partition("-")[0]) / 1000
    columns = (log.attempts, log.began, log.waited, log.took, log.outcomes, log.errors)
    for task, priority, name, number, began, waited, took, outcome, error in zip(
        log.tasks, log.priorities, log.names, *columns, strict=True
    ):
        said = _NAMES.get(outcome, outcome)
        attempt = Attempt(number, log.worker, log.agent, began, waited, took, said, error)
        yield EndedTask(task, log.queue, log.group, priority, name, at, attempt)
