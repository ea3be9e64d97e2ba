"""Dead letters: lists, replays and purges tasks that failed permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import envelope, names
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.record import Record
from agentbus.core.stream import fields, text
from agentbus.core.timespec import stream_id
from agentbus.queues.ids import task_id
from agentbus.store.steps import Command, Emit, Script

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step

# Letters read or purged at once: each may have a traceback and a large payload.
_PAGE = 200
# How much of a stream one step rewrites to remove letters from its middle.
_REWRITTEN, _REWRITTEN_BYTES = 1000, 4 * 1024 * 1024


class Letter(Record):
    """A dead letter: the whole task, its error, and its origin.

    `payload` is None if the task was trimmed or malformed; `replayed` is the id of the task that a replay
    published.
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
    *,
    letters_of: str | None = None,
) -> Op[list[Letter]]:
    """Return the oldest dead letters of a group, past the one with the id `after`.

    With `match`, only those whose error contains this text. They are stored under the name `letters_of`, by
    default the queue's; several queues may share a name, and each function here sees only its own queue's.
    """
    box = _Box(scope, queue, group, letters_of)
    found: list[Letter] = []
    at, last = yield from _span(box, after)
    while at and len(found) < limit:
        page, at = yield from _page(box, at, last)
        found += [one for one in page if match is None or match in one.error]
    return found[:limit]


def each(
    scope: Scope,
    queue: str,
    group: str,
    after: str | None = None,
    match: str | None = None,
    *,
    letters_of: str | None = None,
) -> Op[None]:
    """Emit the dead letters that exist now, oldest first, with one page in memory at a time."""
    box = _Box(scope, queue, group, letters_of)
    at, last = yield from _span(box, after)
    while at:
        page, at = yield from _page(box, at, last)
        for one in page:
            if match is None or match in one.error:
                yield Emit(one)


def letter(
    scope: Scope, queue: str, group: str, letter_id: str, *, letters_of: str | None = None
) -> Op[Letter]:
    """Return one dead letter. Raises `NotFound`."""
    found: list[Letter] = []
    if _is_id(letter_id):
        box = _Box(scope, queue, group, letters_of)
        found, _ = yield from _page(box, letter_id, letter_id)
    if not found:
        raise _missing(_Box(scope, queue, group, letters_of), letter_id)
    return found[0]


def replay(
    scope: Scope,
    queue: str,
    group: str,
    letter_id: str,
    *,
    to: str | None = None,
    letters_of: str | None = None,
) -> Op[str]:
    """Publish a letter's task again, with its key and envelope, and return the new id.

    It goes into its original queue, or into `to`. A letter is replayed once; further calls return the same
    id.
    """
    found = yield from letter(scope, queue, group, letter_id, letters_of=letters_of)
    if not holds_a_task(found):
        raise UsageError(
            f"the dead letter {letter_id!r} contains no task: {found.error}",
            hint="there is nothing to publish",
        )
    reply = yield _replaying(_Box(scope, queue, group, letters_of), found, to)
    if not reply:
        raise NotFound(f"the dead letter {letter_id!r} is gone", hint="another may have purged it")
    return text(reply)


def replay_all(
    scope: Scope,
    queue: str,
    group: str,
    *,
    match: str | None = None,
    to: str | None = None,
    letters_of: str | None = None,
) -> Op[list[str]]:
    """Replay all existing letters that were not replayed, and return the new tasks' ids."""
    box = _Box(scope, queue, group, letters_of)
    ids: list[str] = []
    at, last = yield from _span(box, None)
    while at:
        page, at = yield from _page(box, at, last)
        for one in page:
            if (match is None or match in one.error) and is_to_be_replayed(one):
                reply = yield _replaying(box, one, to)
                # It may have been purged since the page was read.
                ids += [text(reply)] if reply else []
    return ids


def purge(
    scope: Scope,
    queue: str,
    group: str,
    ids: Sequence[str] = (),
    match: str | None = None,
    *,
    letters_of: str | None = None,
) -> Op[int]:
    """Remove a group's dead letters, all or those with `ids`, and return how many.

    With `match`, only those whose error contains this text.
    """
    box, gone = _Box(scope, queue, group, letters_of), 0
    if match is None and not ids and box.only is None:
        gone = yield _purging(box, "all", ())
    elif match is None and ids and box.only is None:
        # Without a valid id there is no letter.
        named = [one for one in ids if _is_id(one)]
        for start in range(0, len(named), _PAGE):
            page = named[start : start + _PAGE]
            gone += yield _purging(box, "named", page)
    elif ids:
        for one in ids:
            some, _ = (yield from _page(box, one, one)) if _is_id(one) else ([], "")
            if match is not None and not some:
                raise _missing(box, one)
            if some and (match is None or match in some[0].error):
                gone += yield _purging(box, "named", (one,))
    else:
        at, last = yield from _span(box, None)
        while at:
            some, at = yield from _page(box, at, last)
            doomed = [one.id for one in some if match is None or match in one.error]
            if doomed:
                gone += yield _purging(box, "named", doomed)
    return gone


def compact(scope: Scope, name: str, group: str) -> Op[None]:
    """Free the memory of purged letters that are the oldest by now."""
    box = _Box(scope, name, group, None)
    hidden = yield Command("SCARD", box.purged)
    while hidden:
        yield _purging(box, "named", ())
        before, hidden = hidden, (yield Command("SCARD", box.purged))
        if hidden >= before:
            return


def holds_a_task(one: Letter) -> bool:
    """Report whether a letter contains a task; a tombstone does not."""
    return one.payload is not None or bool((one.fields or {}).get("payload"))


def is_to_be_replayed(one: Letter) -> bool:
    """Report whether `replay_all` replays a letter."""
    return one.replayed is None and holds_a_task(one)


class _Box:
    """The keys of a group's dead letters; `only` is the queue if it shares them with others."""

    __slots__ = ("group", "letters", "only", "purged", "queue", "replayed", "scope")

    def __init__(self, scope: Scope, queue: str, group: str, letters_of: str | None) -> None:
        name, keys = letters_of or queue, scope.keys
        self.scope = scope
        self.queue = queue
        self.group = group
        self.only = None if name == queue else queue
        self.letters = keys.dead_letters(name, group)
        self.replayed = keys.replayed(name, group)
        self.purged = keys.purged(name, group)


def _missing(box: _Box, letter_id: str) -> NotFound:
    return NotFound(
        f"there is no dead letter {letter_id!r} of {box.queue!r} for the group {box.group!r}",
        hint=f"bus.queue({box.queue!r}).dead_letters({box.group!r}) returns them",
        shell_hint=f"see 'agentbus dlq list {names.shell_word(box.queue)}'",
    )


def _is_id(letter_id: str) -> bool:
    return "-" in letter_id and stream_id(letter_id) is not None


def _span(box: _Box, after: str | None) -> Generator[Step, Any, tuple[str, str]]:
    """Return the first position ('' if there is no letter) and the last: later letters are left out."""
    if after is not None and not _is_id(after):
        raise UsageError(
            f"{after[:60]!a} is not the id of a dead letter",
            hint="give the id of one that was listed",
        )
    newest = yield Command("XREVRANGE", box.letters, "+", "-", "COUNT", 1)
    if not newest:
        return "", ""
    return "-" if after is None else f"({after}", text(newest[0][0])


def _page(box: _Box, start: str, last: str) -> Generator[Step, Any, tuple[list[Letter], str]]:
    """Return a page of letters, without purged ones, and the next position ('' at the end)."""
    entries = yield Command("XRANGE", box.letters, start, last, "COUNT", _PAGE)
    if not entries:
        return [], ""
    ids = [text(entry[0]) for entry in entries]
    marks = yield Command("HMGET", box.replayed, *ids)
    hidden = yield Command("SMISMEMBER", box.purged, *ids)
    where = {one: text(mark) for one, mark in zip(ids, marks, strict=True) if mark is not None}
    found = [
        _letter(entry, box.queue if box.only is None else "", box.group, where)
        for entry, gone in zip(entries, hidden, strict=True)
        if not gone
    ]
    if box.only is not None:
        found = [one for one in found if one.queue == box.only]
    return found, f"({ids[-1]}" if len(ids) == _PAGE else ""


def _replaying(box: _Box, one: Letter, to: str | None) -> Script:
    keys = box.scope.keys
    target = one.queue if to is None else names.name("queue", to)
    priority = (one.fields or {}).get("priority", "normal")
    return Script(
        "replay",
        (
            *(box.letters, keys.queue(target, priority), keys.queues),
            *(keys.stats(target), box.replayed, box.purged),
        ),
        (one.id, target, task_id("", target, priority), *OWN),
        writes=True,
    )


def _purging(box: _Box, what: str, ids: Sequence[str]) -> Script:
    return Script(
        "purge",
        (box.letters, box.replayed, box.purged),
        (what, _REWRITTEN, _REWRITTEN_BYTES, *ids),
        writes=True,
    )


# The fields of a letter beside the task's own.
OWN = (
    *("queue", "group", "priority", "original_id", "task_id", "attempts"),
    *("error", "traceback", "failed_at"),
)


def _letter(entry: Any, queue: str, group: str, where: Mapping[str, str]) -> Letter:
    letter_id, flat = text(entry[0]), entry[1] or []
    named = fields(flat)
    own = {key: named[key] for key in OWN if key in named}
    # The letter's own fields come last; another program's task may have fields of the same names.
    last, names_left = len(flat), set(OWN)
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
        own.get("queue", queue),
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
