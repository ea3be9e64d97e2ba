"""Queues: priorities, defaults and task ids."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.core import envelope, names, validate
from agentbus.core.cache import cached
from agentbus.core.errors import InvalidName, NotFound, UsageError
from agentbus.core.stream import text
from agentbus.core.validate import closest
from agentbus.store.steps import Batch, Command, ServerReply

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step


PRIORITIES = ("critical", "high", "normal", "low")
# Stream of the tasks, of any priority, that were moved out of the other streams to wait for a
# retry.
RETRY = "retry"
STREAMS = (*PRIORITIES, RETRY)
# Name of the entry field and the envelope field for the place that a moved task had before.
MOVED_FROM = "agentbus_moved_from"
# Name of the consumer that holds tasks between two attempts; no worker has this name.
ASIDE = "~aside"
BOUND = 10_000
DEDUP_WINDOW = 300
RESULT_KEPT = 86_400
# Seconds for which a unique task's key is kept if the end of the task is never recorded.
UNIQUE_KEPT = 30 * 86_400
# Prefix of consumers for tasks taken by hand; the agent's name follows.
BY_HAND = "hand:"
# Number of names, oldest first, among which to search for names similar to an unknown name.
_NAMED = 9_999
# Name of the consumer group of routers, which move tasks but process none.
ROUTER = "router"
# First character of the names of internal queues, which the bus itself fills.
OF_THE_BUS = "~"
# Prefix of a private reply stream in an envelope; the caller's name follows.
PRIVATE = "~replies."


def taker(consumer: str | None) -> str | None:
    """Return the agent for which a consumer takes tasks by hand; None for other consumers."""
    if consumer is None or not consumer.startswith(BY_HAND):
        return None
    return consumer.removeprefix(BY_HAND)


def bound_of(queue: str) -> int:
    """Return the default bound of a queue, in tasks."""
    if queue == "incoming":
        return 1_000
    return 100 if queue.startswith("agent.") else BOUND


def is_writable(queue: str) -> bool:
    """Return whether publishers may add tasks to a queue, and not the bus alone, as to `~webhooks`."""
    return not queue.startswith(OF_THE_BUS)


def writable(queue: str) -> None:
    """Raise `InvalidName` for a queue to which the bus alone adds tasks."""
    if not is_writable(queue):
        raise InvalidName(
            f"the queue {queue!a} belongs to the bus itself",
            hint=f"use another: only the bus adds tasks to queues that begin with {OF_THE_BUS!r}",
        )


def peek(scope: Scope, queue: str, limit: int = 10) -> Op[list[tuple[str, Any]]]:
    """Return the oldest tasks of a queue, by priority, without claiming them."""
    validate.number_of("limit", limit, "tasks")
    tasks: list[tuple[str, Any]] = []
    for priority in PRIORITIES:
        room = limit - len(tasks)
        if room <= 0:
            break
        entries = yield Command(
            "XRANGE", scope.keys.queue(queue, priority), "-", "+", "COUNT", room
        )
        for entry_id, flat in entries:
            try:
                payload, meta = envelope.decode(flat or [])
            except ValueError as error:
                payload, meta = {"malformed": str(error)}, {}
            tasks.append((str(meta.get("id") or task_id(text(entry_id), queue, priority)), payload))
    return tasks


def groups_of(
    scope: Scope, queue: str, streams: Sequence[str] = PRIORITIES
) -> Generator[Step, Any, dict[str, list[dict[bytes, Any]]]]:
    """Return the reply of XINFO GROUPS for each of a queue's streams that exists, by priority."""
    replies = yield Batch(
        [("XINFO", "GROUPS", scope.keys.queue(queue, priority)) for priority in streams]
    )
    return {
        priority: [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in groups]
        for priority, groups in zip(streams, replies, strict=True)
        if not isinstance(groups, ServerReply)
    }


def group_names(streams: dict[str, list[dict[bytes, Any]]]) -> set[str]:
    """Return the names of the groups in a result of `groups_of`."""
    return {text(group[b"name"]) for groups in streams.values() for group in groups}


def missing(scope: Scope, queue: str) -> Op[NotFound]:
    """Return the error for a queue that does not exist, with the most similar existing name."""
    (listed,) = yield Batch([("ZRANGE", scope.keys.queues, 0, _NAMED)])
    near = closest(queue, map(text, listed)) if isinstance(listed, list) else ""
    advice = f"the nearest there: {near}; " if near else ""
    return NotFound(
        f"there is no queue {queue!r}",
        hint=f"{advice}bus.queues() returns their names",
        shell_hint=f"{advice}see 'agentbus list --queues'",
    )


def split(task_id: str) -> tuple[str, str, str]:
    """Return the entry id, the queue's encoded name and the priority in a task's id."""
    entry_id, separator, rest = task_id.partition("@")
    if not separator:
        raise UsageError(f"{task_id!r} is not a task id", hint="give one that 'publish' returned")
    queue, _, priority = rest.partition(":")
    return entry_id, queue, priority or "normal"


def check_ids(given: str | Iterable[str]) -> list[str]:
    """Return task ids, given as a collection or as a single id. Raises `UsageError`."""
    return [given] if isinstance(given, str) else names.items("task id", given)


def task_id(entry_id: str, queue: str, priority: str) -> str:
    """Return a task's id: the id of its entry, its queue and its priority."""
    return entry_id + suffix(queue, priority)


@cached
def suffix(queue: str, priority: str) -> str:
    """Return the suffix of task ids after the entry id."""
    tail = "" if priority == "normal" else f":{priority}"
    return f"@{names.escape(queue)}{tail}"
