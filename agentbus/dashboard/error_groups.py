"""Dead letters grouped by the cause of their errors; replays and purges a whole group.

The cause is the fingerprint of an error: its first line, of which quoted text, addresses, ids and numbers
are masked, as error trackers group them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING

from agentbus.core.errors import NotFound, UsageError
from agentbus.core.stream import id_time, position, text
from agentbus.core.timespec import stream_id
from agentbus.dashboard.letter_boxes import ErrorCount, ErrorSum, boxes, counted, keys_of, purged_of
from agentbus.dashboard.stream_walk import Mark, WalkQuery, walk
from agentbus.queues.dead_letters import is_to_be_replayed
from agentbus.store.steps import Batch, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentbus.dashboard.letter_boxes import LetterBox
    from agentbus.queues.dead_letters import Letter
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    # The stream, the queue and the id of a dead letter.
    _Place = tuple[LetterBox, str, str]

# Limits: letters per call, commands per batch, dead-letter streams per script.
READ, _AT_ONCE, _BOXES = 20_000, 500, 100


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """The dead letters with errors of one cause: the newest error's first line, and their queues.

    `replayed` of the `letters` were replayed. `newest` and `oldest` are the unix times of the first
    and last failures; `sample` is the queue, the group and the id of the newest letter. `variants` are the
    first lines with their numbers of letters, `places` the queues and groups; both most letters first.
    """

    error: str
    fingerprint: str
    letters: int
    replayed: int
    newest: float
    oldest: float
    sample: tuple[str, str, str]
    places: tuple[ErrorCount, ...]
    variants: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The groups of dead letters, most letters first, among the `read` newest letters.

    `complete` is true if all letters were read. `errors` is the number of groups, including omitted
    ones.
    """

    groups: tuple[ErrorGroup, ...]
    errors: int
    letters: int
    replayed: int
    read: int
    complete: bool


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Dead letters with errors of one cause, or with any; `after` continues the list, None at its end."""

    letters: tuple[Letter, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class ReplayPage:
    """The result of one call that replays letters: the ids of the new tasks.

    `skipped` letters contain no task, or were replayed before. `after` continues the replay, None
    at its end.
    """

    tasks: tuple[str, ...]
    skipped: int
    after: str | None


@dataclass(frozen=True, slots=True)
class PurgePage:
    """The number of letters purged by one call; `after` continues the purge, None at its end."""

    purged: int
    after: str | None


class LetterGroups:
    """The dead letters of a project, or of a queue, or of a group of it.

    `seen` has the groups of dead-letter streams that a scan found.
    """

    def __init__(
        self,
        scope: Scope,
        policies: Policies,
        queue: str | None,
        group: str | None,
        seen: Mapping[str, set[str]],
    ) -> None:
        self._scope = scope
        self._queue = queue
        self._letters_of = policies.letters_of
        self._boxes: Callable[[], Op[list[LetterBox]]]
        self._boxes = lambda: boxes(scope, policies, queue, group, seen)

    def report(self, most: int, limit: int, error: str | None = None) -> Op[ErrorReport]:
        """Return the groups of errors, or the group with the cause of one error."""
        found = yield from self._boxes()
        counts, read, complete = yield from counted(self._scope, found, most, error)
        mine = [one for one in counts if self._queue in (None, one[0])]
        by_cause: dict[bytes, list[ErrorSum]] = {}
        for one in mine:
            by_cause.setdefault(one[7], []).append(one)
        shown = nsmallest(max(0, limit), by_cause.values(), key=_rank)
        return ErrorReport(
            tuple(map(_grouped, shown)),
            len(by_cause),
            sum(one[3] for one in mine),
            sum(one[4] for one in mine),
            read,
            complete,
        )

    def letters(
        self, error: str | None, after: str | None, limit: int, most: int
    ) -> Op[LetterPage]:
        """Return letters with the cause of one error, or all, stream by stream, newest first."""
        found, mark = yield from self._matching(error, after, limit, most, newest_first=True)
        letters = []
        for box, queue, one in found:
            try:
                letters.append((yield from box.of(self._scope, queue).letter(one)))
            except NotFound:
                # The letter was purged, and still awaits its deletion.
                continue
        return LetterPage(tuple(letters), mark)

    def replay(
        self, error: str, after: str | None, limit: int, most: int, to: str | None
    ) -> Op[ReplayPage]:
        """Replay letters with the cause of one error, oldest first in each stream."""
        found, mark = yield from self._matching(error, after, limit, most)
        tasks: list[str] = []
        left = yield from self._not_replayed(found)
        skipped = len(found) - len(left)
        for box, queue, one in left:
            letters = box.of(self._scope, queue)
            try:
                letter = yield from letters.letter(one)
                if is_to_be_replayed(letter):
                    tasks.append((yield from letters.replay(one, to=to)))
                else:
                    skipped += 1
            except NotFound:
                # The letter was purged.
                continue
        return ReplayPage(tuple(tasks), skipped, mark)

    def _not_replayed(self, found: Sequence[_Place]) -> Op[list[_Place]]:
        """Return the letters without a record of a replay, without reading the letters."""
        left = []
        for at in range(0, len(found), _AT_ONCE):
            page = found[at : at + _AT_ONCE]
            marks = yield Batch(
                [
                    ("HGET", self._scope.keys.replayed(box.name, box.group), one)
                    for box, _, one in page
                ]
            )
            left += [
                place
                for place, mark in zip(page, marks, strict=True)
                if not isinstance(mark, bytes)
            ]
        return left

    def purge(self, error: str, after: str | None, limit: int, most: int) -> Op[PurgePage]:
        """Purge letters with the cause of one error."""
        found, mark = yield from self._matching(error, after, limit, most)
        by_place: dict[tuple[LetterBox, str], list[str]] = {}
        for box, queue, one in found:
            by_place.setdefault((box, queue), []).append(one)
        purged = 0
        for (box, queue), ids in by_place.items():
            purged += yield from box.of(self._scope, queue).purge(ids)
        return PurgePage(purged, mark)

    def _matching(
        self,
        error: str | None,
        after: str | None,
        limit: int,
        most: int,
        *,
        newest_first: bool = False,
    ) -> Op[tuple[list[_Place], str | None]]:
        """Return the stream, queue and id of letters with an error, and where to continue."""
        if limit < 1:
            raise UsageError(f"the limit is {limit}", hint="give a positive number")
        scope = self._scope
        until, _, rest = (after or "").partition("/")
        mark = Mark.read(rest)
        whole = after is None or ("-" in until and stream_id(until) is not None)
        if not whole or mark is None:
            raise UsageError(
                f"{(after or '')[:60]!a} does not continue a list of dead letters",
                hint="give what the last call returned as 'after'",
            )
        found = yield from self._boxes()
        if after is None:
            # Exclude letters that are added from now on: a replayed task may fail again.
            until = yield from _newest(scope, found)
        how, texts = ("all", ()) if error is None else ("fingerprint", (error,))
        wanted = WalkQuery(how, texts, ("queue",), newest_first, until, self._named_by())
        matches, _, reached = yield from walk(
            [(box.name, box.group) for box in found],
            keys_of(scope, found),
            mark,
            wanted,
            hits=limit,
            most=most,
            purged=purged_of(scope, found),
        )
        by_place = {(box.name, box.group): box for box in found}
        mine = [(by_place[place], queue or place[0], one) for place, one, (queue,) in matches]
        return mine, None if reached is None else f"{until}/{reached}"

    def _named_by(self) -> tuple[str, ...]:
        """Return the values of the field `queue` that select the queue's letters."""
        if self._queue is None:
            return ()
        own = self._letters_of(self._queue) == self._queue
        return (self._queue, "") if own else (self._queue,)


def _newest(scope: Scope, found: Sequence[LetterBox]) -> Op[str]:
    """Return the last id of the server's current millisecond, or the newest letter's if later."""
    newest, keys = (0, 0), keys_of(scope, found)
    for at in range(0, len(keys), _BOXES):
        now, *ends = yield Script("read_stream_ends", keys[at : at + _BOXES])
        newest = max(newest, (now, 2**64 - 1), *(position(text(one[2]) or "0") for one in ends))
    return "-".join(map(str, newest))


def _rank(sums: Sequence[ErrorSum]) -> tuple[int, tuple[int, int]]:
    newest, number = max(position(text(one[5])) for one in sums)
    return -sum(one[3] for one in sums), (-newest, -number)


def _grouped(sums: Sequence[ErrorSum]) -> ErrorGroup:
    lines = [ErrorCount(*one[:5], text(one[5]), text(one[6])) for one in sums]
    variants: Counter[str] = Counter()
    by_place: dict[tuple[str, str], list[ErrorCount]] = {}
    for line in lines:
        variants[line.error] += line.letters
        by_place.setdefault((line.queue, line.group), []).append(line)
    counts = list(map(_together, by_place.values()))
    newest = max(counts, key=lambda one: position(one.newest))
    oldest = min(counts, key=lambda one: position(one.oldest))
    return ErrorGroup(
        newest.error,
        text(sums[0][7]),
        sum(one.letters for one in counts),
        sum(one.replayed for one in counts),
        id_time(newest.newest),
        id_time(oldest.oldest),
        (newest.queue, newest.group, newest.newest),
        tuple(sorted(counts, key=lambda one: (-one.letters, one.queue, one.group))),
        tuple(sorted(variants.items(), key=lambda one: (-one[1], one[0]))),
    )


def _together(lines: Sequence[ErrorCount]) -> ErrorCount:
    """Return the counts of one queue and group in one, with the error of its newest letter."""
    newest = max(lines, key=lambda line: position(line.newest))
    oldest = min(lines, key=lambda line: position(line.oldest)).oldest
    letters, replayed = (
        sum(getattr(line, name) for line in lines) for name in ("letters", "replayed")
    )
    return replace(newest, letters=letters, replayed=replayed, oldest=oldest)
