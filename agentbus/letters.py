"""Dead letters: tasks that failed for good, with the real error, to be looked at and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus import envelope
from agentbus.errors import NotFound, UsageError
from agentbus.queue import task_id
from agentbus.record import Record
from agentbus.store import Command, Run
from agentbus.stream import fields, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbus.keys import Scope
    from agentbus.store import Op

_PAGE = 500


class Letter(Record):
    """A dead letter: the whole task, why it failed, and where it came from.

    `payload` is None where the task was trimmed away or could not be read; `replayed` is the id of the
    task that it became, if it was replayed.
    """

    id: str
    queue: str
    group: str
    payload: Any
    error: str
    traceback: str
    attempts: int
    failed_at: str | None
    task_id: str | None
    original_id: str | None
    replayed: str | None = None
    fields: Mapping[str, str] | None = None


def dead_letters(scope: Scope, queue: str, group: str, limit: int = 100) -> Op[list[Letter]]:
    """Return the oldest dead letters of a group."""
    key = scope.keys.dead_letters(queue, group)
    entries = yield Command("XRANGE", key, "-", "+", "COUNT", limit)
    marks = yield Command("HGETALL", scope.keys.replayed(queue, group))
    where = {text(marks[i]): text(marks[i + 1]) for i in range(0, len(marks), 2)}
    return [_letter(entry, queue, group, where) for entry in entries]


def letter(scope: Scope, queue: str, group: str, letter_id: str) -> Op[Letter]:
    """Return one dead letter. Raises `NotFound`."""
    key = scope.keys.dead_letters(queue, group)
    milliseconds, _, sequence = letter_id.partition("-")
    sound = milliseconds.isdecimal() and sequence.isdecimal() and letter_id.isascii()
    entries = (yield Command("XRANGE", key, letter_id, letter_id)) if sound else []
    if not entries:
        raise NotFound(
            f"there is no dead letter {letter_id!r} of {queue!r} for the group {group!r}",
            hint=f"see 'agentbus dlq list {queue}'",
        )
    mark = yield Command("HGET", scope.keys.replayed(queue, group), letter_id)
    where = {letter_id: text(mark)} if mark is not None else {}
    return _letter(entries[0], queue, group, where)


def replay(
    scope: Scope, queue: str, group: str, letter_id: str, *, to: str | None = None
) -> Op[str]:
    """Publish a letter's task anew, with its key and envelope, and note where it went; returns its id.

    A letter is replayed once: asked again, it returns the same id.
    """
    found = yield from letter(scope, queue, group, letter_id)
    if found.payload is None and not (found.fields or {}).get("payload"):
        raise UsageError(
            f"the dead letter {letter_id!r} holds no task: {found.error}",
            hint="there is nothing to publish",
        )
    keys = scope.keys
    target = to or queue
    priority = (found.fields or {}).get("priority", "normal")
    reply = yield Run(
        "replay",
        (
            *(keys.dead_letters(queue, group), keys.queue(target, priority), keys.queues),
            *(keys.stats(target), keys.replayed(queue, group)),
        ),
        (letter_id, target, task_id("", target, priority), *_OWN),
        writes=True,
    )
    if not reply:
        raise NotFound(f"the dead letter {letter_id!r} is gone", hint="another may have purged it")
    return text(reply)


def purge(scope: Scope, queue: str, group: str, ids: Sequence[str] = ()) -> Op[int]:
    """Remove dead letters, all of a group or those named; returns how many."""
    gone: int = yield Run(
        "purge",
        (scope.keys.dead_letters(queue, group), scope.keys.replayed(queue, group)),
        ids,
        writes=True,
    )
    return gone


# What a letter has beside the task's own fields.
_OWN = (
    *("queue", "group", "priority", "original_id", "task_id", "attempts"),
    *("error", "traceback", "failed_at"),
)


def _letter(entry: Any, queue: str, group: str, where: Mapping[str, str]) -> Letter:
    letter_id, flat = text(entry[0]), entry[1] or []
    named = fields(flat)
    own = {key: named[key] for key in _OWN if key in named}
    # The letter's own fields come last; a task of another program's may have fields of the same names.
    last, names_left = len(flat), set(_OWN)
    while last and text(flat[last - 2]) in names_left:
        names_left.remove(text(flat[last - 2]))
        last -= 2
    task = flat[:last]
    payload = None
    if task:
        try:
            payload, _ = envelope.decode(task)
        except (ValueError, UnicodeDecodeError):
            payload = None
    attempts = own.get("attempts", "0")
    return Letter(
        letter_id,
        queue,
        group,
        payload,
        own.get("error", ""),
        own.get("traceback", ""),
        int(attempts) if attempts.isdigit() else 0,
        own.get("failed_at"),
        own.get("task_id"),
        own.get("original_id"),
        where.get(letter_id),
        named,
    )
