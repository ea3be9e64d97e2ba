"""Dead letters: tasks that failed for good, with the real error, to be looked at and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus import envelope, names
from agentbus.errors import NotFound, UsageError
from agentbus.queue import task_id
from agentbus.record import Record
from agentbus.store import Command, Emit, Run
from agentbus.stream import fields, text
from agentbus.when import stream_id

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from agentbus.keys import Scope
    from agentbus.store import Op, Step

# How many letters are read, or purged, at once: each may have a traceback and a large payload.
_PAGE = 200
# How much of a stream is written again in one step, for the letters in its midst to be gone.
_REWRITTEN, _REWRITTEN_BYTES = 1000, 4 * 1024 * 1024


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


def dead_letters(
    scope: Scope,
    queue: str,
    group: str,
    limit: int = 100,
    after: str | None = None,
    match: str | None = None,
) -> Op[list[Letter]]:
    """Return the oldest dead letters of a group, past the one with the id `after`.

    With `match` only those whose error holds this text.
    """
    found: list[Letter] = []
    at, last = yield from _span(scope, queue, group, after)
    while at and len(found) < limit:
        page, at = yield from _page(scope, queue, group, at, last)
        found += [one for one in page if match is None or match in one.error]
    return found[:limit]


def each(
    scope: Scope, queue: str, group: str, after: str | None = None, match: str | None = None
) -> Op[None]:
    """Emit the dead letters that there are now, the oldest first, a page in memory at a time."""
    at, last = yield from _span(scope, queue, group, after)
    while at:
        page, at = yield from _page(scope, queue, group, at, last)
        for one in page:
            if match is None or match in one.error:
                yield Emit(one)


def letter(scope: Scope, queue: str, group: str, letter_id: str) -> Op[Letter]:
    """Return one dead letter. Raises `NotFound`."""
    found: list[Letter] = []
    if _is_id(letter_id):
        found, _ = yield from _page(scope, queue, group, letter_id, letter_id)
    if not found:
        raise NotFound(
            f"there is no dead letter {letter_id!r} of {queue!r} for the group {group!r}",
            hint=f"see 'agentbus dlq list {queue}'",
        )
    return found[0]


def replay(
    scope: Scope, queue: str, group: str, letter_id: str, *, to: str | None = None
) -> Op[str]:
    """Publish a letter's task anew, with its key and envelope, and note where it went; returns its id.

    A letter is replayed once: asked again, it returns the same id.
    """
    found = yield from letter(scope, queue, group, letter_id)
    if not holds_a_task(found):
        raise UsageError(
            f"the dead letter {letter_id!r} holds no task: {found.error}",
            hint="there is nothing to publish",
        )
    reply = yield _replaying(scope, found, to)
    if not reply:
        raise NotFound(f"the dead letter {letter_id!r} is gone", hint="another may have purged it")
    return text(reply)


def replay_all(
    scope: Scope, queue: str, group: str, *, match: str | None = None, to: str | None = None
) -> Op[list[str]]:
    """Publish anew the tasks of all letters there are now that were not replayed; returns their ids."""
    ids: list[str] = []
    at, last = yield from _span(scope, queue, group, None)
    while at:
        page, at = yield from _page(scope, queue, group, at, last)
        for one in page:
            if (match is None or match in one.error) and is_to_be_replayed(one):
                reply = yield _replaying(scope, one, to)
                # Another may have purged it since the page was read.
                ids += [text(reply)] if reply else []
    return ids


def purge(
    scope: Scope, queue: str, group: str, ids: Sequence[str] = (), match: str | None = None
) -> Op[int]:
    """Remove dead letters, all of a group or those named; returns how many.

    With `match` only those of them whose error holds this text.
    """
    gone = 0
    if match is None and not ids:
        gone = yield _purging(scope, queue, group, "all", ())
    elif match is None:
        # What is no id is not there.
        named = [one for one in ids if _is_id(one)]
        for start in range(0, len(named), _PAGE):
            page = named[start : start + _PAGE]
            gone += yield _purging(scope, queue, group, "named", page)
    elif ids:
        for one in ids:
            found = yield from letter(scope, queue, group, one)
            if match in found.error:
                gone += yield _purging(scope, queue, group, "named", (one,))
    else:
        at, last = yield from _span(scope, queue, group, None)
        while at:
            some, at = yield from _page(scope, queue, group, at, last)
            doomed = [one.id for one in some if match in one.error]
            if doomed:
                gone += yield _purging(scope, queue, group, "named", doomed)
    return gone


def compact(scope: Scope, queue: str, group: str) -> Op[None]:
    """Give back the memory of purged letters that have come to be the oldest."""
    hidden = yield Command("SCARD", scope.keys.purged(queue, group))
    while hidden:
        yield _purging(scope, queue, group, "named", ())
        before, hidden = hidden, (yield Command("SCARD", scope.keys.purged(queue, group)))
        if hidden >= before:
            return


def holds_a_task(one: Letter) -> bool:
    """Tell whether a letter is more than a tombstone."""
    return one.payload is not None or bool((one.fields or {}).get("payload"))


def is_to_be_replayed(one: Letter) -> bool:
    """Tell whether a letter is among those meant where all are to be replayed."""
    return one.replayed is None and holds_a_task(one)


def _is_id(letter_id: str) -> bool:
    return "-" in letter_id and stream_id(letter_id) is not None


def _span(
    scope: Scope, queue: str, group: str, after: str | None
) -> Generator[Step, Any, tuple[str, str]]:
    """Return where to begin ('' if there is nothing) and where to end: later letters are not meant."""
    if after is not None and not _is_id(after):
        raise UsageError(f"{after[:60]!a} is no dead letter's id", hint="see 'agentbus dlq list'")
    newest = yield Command("XREVRANGE", scope.keys.dead_letters(queue, group), "+", "-", "COUNT", 1)
    if not newest:
        return "", ""
    return "-" if after is None else f"({after}", text(newest[0][0])


def _page(
    scope: Scope, queue: str, group: str, start: str, last: str
) -> Generator[Step, Any, tuple[list[Letter], str]]:
    """Return some letters, without those that were purged, and where to go on ('' at the end)."""
    keys = scope.keys
    key = keys.dead_letters(queue, group)
    entries = yield Command("XRANGE", key, start, last, "COUNT", _PAGE)
    if not entries:
        return [], ""
    ids = [text(entry[0]) for entry in entries]
    marks = yield Command("HMGET", keys.replayed(queue, group), *ids)
    hidden = yield Command("SMISMEMBER", keys.purged(queue, group), *ids)
    where = {one: text(mark) for one, mark in zip(ids, marks, strict=True) if mark is not None}
    found = [
        _letter(entry, queue, group, where)
        for entry, gone in zip(entries, hidden, strict=True)
        if not gone
    ]
    return found, f"({ids[-1]}" if len(ids) == _PAGE else ""


def _replaying(scope: Scope, one: Letter, to: str | None) -> Run:
    keys = scope.keys
    target = one.queue if to is None else names.name("queue", to)
    priority = (one.fields or {}).get("priority", "normal")
    return Run(
        "replay",
        (
            *(keys.dead_letters(one.queue, one.group), keys.queue(target, priority), keys.queues),
            *(keys.stats(target), keys.replayed(one.queue, one.group)),
            keys.purged(one.queue, one.group),
        ),
        (one.id, target, task_id("", target, priority), *_OWN),
        writes=True,
    )


def _purging(scope: Scope, queue: str, group: str, what: str, ids: Sequence[str]) -> Run:
    keys = scope.keys
    return Run(
        "purge",
        (keys.dead_letters(queue, group), keys.replayed(queue, group), keys.purged(queue, group)),
        (what, _REWRITTEN, _REWRITTEN_BYTES, *ids),
        writes=True,
    )


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
