"""Tells tasks that wait for others how those ended: they are ready, or are buried in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope
from agentbus.core.clock import rfc3339
from agentbus.core.errors import AgentBusError
from agentbus.core.names import unescape
from agentbus.core.stream import text
from agentbus.queues.ids import PRIORITIES
from agentbus.queues.notify import telling
from agentbus.store.steps import Batch, Command, Script, ServerReply

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op, Step

# How many tasks one script tells.
_PAGE = 200
# How long whoever settled a task tells those that wait for it, in seconds; the rest is left to the chore.
_BESIDE, _CHORE = 0.2, 0.5
_LONGEST_REASON = 2000
DONE = "+"


def queue_of(task_id: str) -> str:
    """Return the queue in a task's id, which need not be one of ours."""
    return unescape(task_id.partition("@")[2].partition(":")[0])


def passed_on(scope: Scope) -> Op[None]:
    """Tell those that wait for what was just settled; what cannot be told now, the chore tells later."""
    try:
        yield from follow(scope, _BESIDE)
    except AgentBusError:
        # The task itself is settled, and the note of it stays.
        return


def follow(scope: Scope, seconds: float | None = None) -> Op[None]:
    """Tell all that wait how the tasks ended for which they wait, for about so many seconds.

    Each is told in one atomic step, and once, however many processes do this at the same time; if one
    dies in the midst of it, another goes on. What is buried by it is told to those that wait in turn.
    """
    until = None if seconds is None else scope.monotonic() + seconds
    cursor: bytes | int = 0
    told = False
    while True:
        cursor, flat = yield Command("HSCAN", scope.keys.settled, cursor, "COUNT", _PAGE)
        notes = {text(flat[at]): text(flat[at + 1]) for at in range(0, len(flat), 2)}
        yield from _free(scope, [field for field in notes if notes[field] == DONE])
        for field, verdict in notes.items():
            if verdict != DONE:
                yield from _bury(scope, field, verdict)
            if until is not None and scope.monotonic() > until:
                return
        told = told or bool(notes)
        if not int(cursor):
            if not told:
                return
            # Those that were buried may have left notes of their own.
            told = False


class Follower:
    """Tells what a worker that died has left untold; a chore of every worker."""

    every = 1.0

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def op(self) -> Op[None]:
        """Tell it."""
        return follow(self._scope, _CHORE)


def _free(scope: Scope, fields: Sequence[str]) -> Op[None]:
    """Tell those that wait for tasks which are done for a group."""
    keys = scope.keys
    spans = [_span(field) for field in fields]
    pages = (yield Batch([_looking(scope, field, span) for field, span in spans])) if spans else []
    told: dict[tuple[str, str], list[str]] = {}
    for (field, prefix), page in zip(spans, pages, strict=True):
        if not page or isinstance(page, ServerReply):
            yield from _forget(scope, field, prefix)
            continue
        for member in map(text, page):
            place = (
                keys.awaited(queue_of(field.partition("\n")[0])),
                queue_of(_waits(member)),
            )
            told.setdefault(place, []).append(member)
    for (index, queue), members in told.items():
        places = [
            key
            for priority in PRIORITIES
            for key in (keys.queue(queue, priority), keys.order(queue, priority))
        ]
        for at in range(0, len(members), _PAGE):
            yield Script(
                "follow",
                (
                    *(keys.settled, index, keys.after(queue), keys.after_bodies(queue)),
                    *(keys.delayed(queue), keys.bodies(queue), keys.bell(queue), *places),
                ),
                (len(PRIORITIES), *PRIORITIES, *members[at : at + _PAGE]),
                writes=True,
            )


def _bury(scope: Scope, field: str, verdict: str) -> Op[None]:
    """Bury those that wait for a task that was buried, for a group or for all."""
    task_id = field.partition("\n")[0]
    why = f"it waited for {task_id}, which was buried: {verdict[1:]}"[:_LONGEST_REASON]
    # However long a chain is, each of its tasks names the one before and what failed first.
    onwards = verdict if verdict.startswith("~") else f"~{why}"
    span = _span(field)
    page = yield Command(*_looking(scope, *span))
    members = [text(member) for member in page if member.count(b"\n") > 1]
    if not members:
        yield from _forget(scope, *span)
    by_queue: dict[str, list[str]] = {}
    for member in members:
        by_queue.setdefault(queue_of(_waits(member)), []).append(member)
    for queue, own in by_queue.items():
        group = yield from _group(scope, queue)
        ids = [_waits(member) for member in own]
        bodies = yield Command("HMGET", scope.keys.after_bodies(queue), *ids)
        index = scope.keys.awaited(queue_of(task_id))
        for member, body in zip(own, bodies, strict=True):
            yield _forsaking(scope, index, (*span, member, onwards, why), queue, group, body)


def _waits(member: str) -> str:
    """Return the task that waits, which ends a member of the index after two digits."""
    return member.rpartition("\n")[2][2:]


def _span(field: str) -> tuple[str, str]:
    """Return a note's field, and how the members of the index begin that it concerns."""
    return field, f"{field}\n" if field.partition("\n")[2] else field


def _looking(scope: Scope, field: str, prefix: str) -> tuple[Arg, ...]:
    index = scope.keys.awaited(queue_of(field.partition("\n")[0]))
    end = f"({prefix[:-1]}\x0b"
    return ("ZRANGEBYLEX", index, f"[{prefix}", end, "LIMIT", 0, _PAGE)


def _forget(scope: Scope, field: str, prefix: str) -> Op[None]:
    """Forget a note that concerns nobody: others told them, or did so until they died."""
    task_id, newline, group = field.partition("\n")
    if not newline:
        # Another program's: it would be met again and again.
        yield Command("HDEL", scope.keys.settled, field)
        return
    keys = (scope.keys.settled, scope.keys.awaited(queue_of(task_id)))
    yield Script("note", keys, (task_id, group, "", prefix), writes=True)


def _forsaking(
    scope: Scope,
    index: str,
    head: tuple[str, str, str, str, str],
    queue: str,
    group: str,
    body: bytes | None,
) -> Script:
    keys, task_id, why = scope.keys, _waits(head[2]), head[4]
    # What is gone was buried or freed by another: the script finds it gone, too.
    found: list[Any] = ["normal", "", "", queue, "0"] if body is None else orjson.loads(body)
    priority, _, _, letters, kept, *flat = found
    try:
        _, meta = envelope.decode([word.encode() for word in flat])
    except ValueError:
        meta = {}
    told = telling(scope, queue, group, task_id, meta, error=why)
    words = (
        *("queue", queue, "group", group, "priority", priority, "task_id", task_id),
        *("attempts", 0, "error", why, "traceback", ""),
        *("failed_at", rfc3339(scope.now(), milliseconds=True)),
    )
    return Script(
        "forsake",
        (
            *(keys.settled, index, keys.after(queue), keys.after_bodies(queue)),
            *(keys.dead_letters(letters, group), keys.result(task_id, group)),
            *(keys.stats(queue), keys.awaited(queue), *told.keys),
        ),
        (*head, kept, told.counter, len(words), *words, *told.argv),
        writes=True,
    )


def _group(scope: Scope, queue: str) -> Generator[Step, Any, str]:
    """Return among whose dead letters a task belongs that no group had: the only one's, or `default`'s."""
    found = yield from groups(scope, queue)
    return found.pop() if len(found) == 1 else "default"


def groups(scope: Scope, queue: str) -> Generator[Step, Any, set[str]]:
    """Return the groups that work on a queue."""
    replies = yield Batch(
        [("XINFO", "GROUPS", scope.keys.queue(queue, priority)) for priority in PRIORITIES]
    )
    return {
        text(dict(zip(flat[::2], flat[1::2], strict=True))[b"name"])
        for found in replies
        if not isinstance(found, ServerReply)
        for flat in found
    }
