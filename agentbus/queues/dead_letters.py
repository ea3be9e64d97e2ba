"""Dead letters: lists, replays and purges tasks that failed permanently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import envelope, names, validate
from agentbus.core.errors import NotFound, UsageError
from agentbus.core.stream import fields, is_number, text
from agentbus.core.timespec import stream_id
from agentbus.queues.ids import MOVED_FROM, PRIORITIES, task_id, writable
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, Emit, Script, one_step

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of dead letters to read or purge per request; each may hold a large payload.
_PAGE = 200
# Maximum number of dead letters to search for that of an old task.
_LOOKED_AT = 2_000
# Maximum entries and bytes of a stream to rewrite per step when dead letters are removed from its
# middle.
_REWRITTEN, _REWRITTEN_BYTES = 1000, 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: the whole task, its error, and its origin.

    `payload` is None if the task was trimmed or malformed; `replayed` is the id of the task published by a
    replay.
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


# Fields of a dead letter in addition to those of its task.
OWN = (
    *("queue", "group", "priority", "original_id", "task_id", "attempts"),
    *("error", "traceback", "failed_at", MOVED_FROM),
)


class DeadLetters:
    """The dead letters of a group of a queue.

    They are stored under the name `letters_of`, by default the queue's. Several queues may share a name,
    but each sees only its own dead letters.
    """

    def __init__(
        self, scope: Scope, queue: str, group: str, *, letters_of: str | None = None
    ) -> None:
        name, keys = letters_of or queue, scope.keys
        self._scope = scope
        self._queue = queue
        self._group = group
        self._shared = name != queue
        self._letters = keys.dead_letters(name, group)
        self._replayed = keys.replayed(name, group)
        self._purged = keys.purged(name, group)

    def oldest(
        self, limit: int = 100, after: str | None = None, match: str | None = None
    ) -> Op[list[Letter]]:
        """Return the oldest dead letters after the one with id `after`.

        With `match`, only those whose error contains this text.
        """
        validate.number_of("limit", limit, "dead letters")
        _check(match)
        letters: list[Letter] = []
        at, last = yield from self._span(after)
        while at and len(letters) < limit:
            page, at = yield from self._page(at, last, match)
            letters += page
        return letters[:limit]

    def each(self, after: str | None = None, match: str | None = None) -> Op[None]:
        """Emit the existing dead letters, oldest first, keeping only one page in memory."""
        _check(match)
        at, last = yield from self._span(after)
        while at:
            page, at = yield from self._page(at, last, match)
            for letter in page:
                yield Emit(letter)

    def letter(self, letter_id: str) -> Op[Letter]:
        """Return one dead letter. Raises `NotFound`."""
        letters = yield from self._named(letter_id)
        if not letters:
            raise self._missing(letter_id)
        return letters[0]

    def replay(self, letter_id: str, *, to: str | None = None) -> Op[str]:
        """Publish a dead letter's task again, with its key and envelope, and return the new id.

        It goes to its original queue, or to `to`. A dead letter is replayed only once; further calls return
        the same id.
        """
        letter = yield from self.letter(letter_id)
        if not holds_a_task(letter):
            raise UsageError(
                f"the dead letter {letter_id!r} contains no task: {letter.error}",
                hint="there is nothing to publish",
            )
        reply = yield self._replaying(letter, to)
        if not reply:
            raise NotFound(
                f"the dead letter {letter_id!r} is gone", hint="another may have purged it"
            )
        return text(reply)

    def replay_all(self, *, match: str | None = None, to: str | None = None) -> Op[list[str]]:
        """Replay all existing dead letters that have not been replayed, and return the new task ids."""
        _check(match)
        ids: list[str] = []
        at, last = yield from self._span(None)
        while at:
            page, at = yield from self._page(at, last, match)
            for letter in filter(is_to_be_replayed, page):
                reply = yield self._replaying(letter, to)
                # The dead letter may have been purged after the page was read.
                ids += [text(reply)] if reply else []
        return ids

    def purge(self, ids: Sequence[str] = (), match: str | None = None) -> Op[int]:
        """Remove all dead letters, or those with `ids`, and return their number.

        With `match`, only those whose error contains this text.
        """
        _check(match)
        gone = 0
        if match is None and not self._shared:
            if not ids:
                return (yield from self._purging("all", ()))
            # An invalid id names no dead letter.
            named = [letter_id for letter_id in ids if _is_id(letter_id)]
            for start in range(0, len(named), _PAGE):
                gone += yield from self._purging("named", named[start : start + _PAGE])
        elif ids:
            for letter_id in ids:
                letters = yield from self._named(letter_id)
                if match is not None and not letters:
                    raise self._missing(letter_id)
                if letters and (match is None or match in letters[0].error):
                    gone += yield from self._purging("named", (letter_id,))
        else:
            at, last = yield from self._span(None)
            while at:
                doomed, at = yield from self._page(at, last, match)
                if doomed:
                    gone += yield from self._purging("named", [letter.id for letter in doomed])
        return gone

    def compact(self) -> Op[None]:
        """Free the memory of purged dead letters that have become the oldest."""
        hidden = yield from or_empty(one_step(Command("SCARD", self._purged)), 0)
        while hidden:
            yield from self._purging("named", ())
            before, hidden = hidden, (yield Command("SCARD", self._purged))
            if hidden >= before:
                return

    def newest(self) -> Op[str]:
        """Return the id of the newest dead letter; `0-0` if there is none."""
        entries = yield Command("XREVRANGE", self._letters, "+", "-", "COUNT", 1)
        return text(entries[0][0]) if entries else "0-0"

    def originals(self, start: str) -> Op[set[str]]:
        """Return the entries of dead tasks from the id `start` on, from at most 2,000 dead letters."""
        originals: set[str] = set()
        at, seen = start, 0
        while at and seen < _LOOKED_AT:
            page, at = yield from self._page(at, "+")
            seen += _PAGE
            originals.update(letter.original_id for letter in page if letter.original_id)
        return originals

    def number_after(self, letter_id: str) -> Op[int]:
        """Return the number of dead letters after the one with this id, excluding purged ones."""
        number, at = 0, f"({letter_id}"
        while at:
            page, at = yield from self._page(at, "+")
            number += len(page)
        return number

    def _missing(self, letter_id: str) -> NotFound:
        return NotFound(
            f"there is no dead letter {letter_id!r} of {self._queue!r} for the group {self._group!r}",
            hint=f"bus.queue({self._queue!r}).dead_letters({self._group!r}) returns them",
            shell_hint=f"see 'agentbus dlq list {names.shell_word(self._queue)}'",
        )

    def _span(self, after: str | None) -> Op[tuple[str, str]]:
        """Return the first position ('' without dead letters) and the last, excluding later ones."""
        if after is not None and not _is_id(after):
            raise UsageError(
                f"{after!a:.60} is not the id of a dead letter",
                hint="give the id of one that was listed",
            )
        newest = yield Command("XREVRANGE", self._letters, "+", "-", "COUNT", 1)
        if not newest:
            return "", ""
        return "-" if after is None else f"({after}", text(newest[0][0])

    def _named(self, letter_id: str) -> Op[list[Letter]]:
        """Return the dead letter with an id, if it exists."""
        if not _is_id(letter_id):
            return []
        letters, _ = yield from self._page(letter_id, letter_id)
        return letters

    def _page(
        self, start: str, last: str, match: str | None = None
    ) -> Op[tuple[list[Letter], str]]:
        """Return a page of dead letters, without purged ones, and the next position ('' at the end)."""
        entries = yield Command("XRANGE", self._letters, start, last, "COUNT", _PAGE)
        if not entries:
            return [], ""
        ids = [text(entry[0]) for entry in entries]
        # If another program stored a different type at these keys, nothing counts as replayed or
        # purged.
        replayed = one_step(Command("HMGET", self._replayed, *ids))
        marks = yield from or_empty(replayed, [None] * len(ids))
        purged = one_step(Command("SMISMEMBER", self._purged, *ids))
        hidden = yield from or_empty(purged, [0] * len(ids))
        where = {
            letter_id: text(mark)
            for letter_id, mark in zip(ids, marks, strict=True)
            if mark is not None
        }
        letters = [
            _letter(entry, "" if self._shared else self._queue, self._group, where)
            for entry, gone in zip(entries, hidden, strict=True)
            if not gone
        ]
        letters = [
            letter
            for letter in letters
            if (match is None or match in letter.error)
            and not (self._shared and letter.queue != self._queue)
        ]
        return letters, f"({ids[-1]}" if len(ids) == _PAGE else ""

    def _replaying(self, letter: Letter, to: str | None) -> Script:
        keys = self._scope.keys
        target = letter.queue if to is None else names.name("queue", to)
        if not target == letter.queue == self._queue:
            # Only a queue's own dead letters may be replayed into an internal queue of the bus.
            writable(target)
        priority = (letter.fields or {}).get("priority", "")
        if priority not in PRIORITIES:
            priority = "normal"
        return Script(
            "replay_dead_letter",
            (
                *(self._letters, keys.queue(target, priority), keys.queues),
                *(keys.stats(target), self._replayed, self._purged),
                keys.order(target, priority),
            ),
            (letter.id, target, task_id("", target, priority), _ordering_key(letter), *OWN),
            writes=True,
        )

    def _purging(self, what: str, ids: Sequence[str]) -> Op[int]:
        once = self._scope.once()
        step = Script(
            "purge_dead_letters",
            (self._letters, self._replayed, self._purged, once.key),
            (what, _REWRITTEN, _REWRITTEN_BYTES, once.token, *ids),
            writes=True,
        )
        gone: int = yield step
        self._scope.free_slot(once, step)
        return gone


def holds_a_task(letter: Letter) -> bool:
    """Report whether a dead letter contains a task; a tombstone does not."""
    return letter.payload is not None or bool((letter.fields or {}).get("payload"))


def is_to_be_replayed(letter: Letter) -> bool:
    """Report whether `replay_all` replays a dead letter."""
    return letter.replayed is None and holds_a_task(letter)


def _ordering_key(letter: Letter) -> str:
    """Return the ordering key of a dead letter's task; '' if it has none."""
    named = letter.fields or {}
    try:
        meta = orjson.loads(named["meta"]) if {"payload", "meta"} <= named.keys() else {}
    except ValueError:
        return ""
    key = meta.get("ordering_key") if isinstance(meta, dict) else None
    return key if isinstance(key, str) else ""


def _check(match: str | None) -> None:
    if match is not None and not isinstance(match, str):
        raise UsageError(f"match is {match!r:.80}", hint="give a part of the error's text")


def _is_id(letter_id: object) -> bool:
    return isinstance(letter_id, str) and "-" in letter_id and stream_id(letter_id) is not None


def _letter(entry: Any, queue: str, group: str, where: Mapping[str, str]) -> Letter:
    letter_id, flat = text(entry[0]), entry[1] or []
    named = fields(flat)
    own = {key: named[key] for key in OWN if key in named}
    # The dead letter's own fields come last; a task from another program may have fields of the
    # same names.
    last, names_left = len(flat), set(OWN)
    while last and text(flat[last - 2]) in names_left:
        names_left.remove(text(flat[last - 2]))
        last -= 2
    task = flat[:last]
    try:
        payload = envelope.decode(task)[0] if task else None
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
        int(attempts) if is_number(attempts) else 0,
        own.get("failed_at"),
        own.get("task_id"),
        own.get("original_id"),
        where.get(letter_id),
        named,
    )
