"""The dead-letter streams of a project: one for each queue and group that has any letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from agentbus.core.stream import text
from agentbus.dashboard import ranking
from agentbus.dashboard.stream_walk import READ_BYTES, SCRIPTS
from agentbus.queues.dead_letters import DeadLetters
from agentbus.store.failures import or_empty
from agentbus.store.steps import Command, Script, one_step
from agentbus.workers.registry import in_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

# Maximum number of dead-letter streams per script.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class LetterBox:
    """A stream of dead letters: the name under which it is stored, and its group."""

    name: str
    group: str

    def of(self, scope: Scope, queue: str) -> DeadLetters:
        """Return a queue's dead letters in this stream."""
        return DeadLetters(scope, queue, self.group, letters_of=self.name)


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """The numbers of letters, and of replayed letters, with one error in a queue and group.

    `newest` and `oldest` are ids of letters.
    """

    queue: str
    group: str
    error: str
    letters: int
    replayed: int
    newest: str
    oldest: str


# The values of an `ErrorCount`, with its ids as bytes, since few of thousands of errors are shown; and the
# fingerprint of the error.
ErrorSum: TypeAlias = tuple[str, str, str, int, int, bytes, bytes, bytes]


def first_line(error: str) -> str:
    """Return the first line of an error."""
    return error.replace("\r", "\n").partition("\n")[0]


def boxes(
    scope: Scope,
    policies: Policies,
    queue: str | None,
    group: str | None,
    seen: Mapping[str, set[str]],
) -> Op[list[LetterBox]]:
    """Return the dead-letter streams of a queue, or of the project, ordered by name.

    `seen` has the groups of streams that a scan found, including groups that no longer exist.
    """
    if queue is None:
        known = yield from or_empty(one_step(Command("ZRANGE", scope.keys.queues, 0, -1)), [])
        names = list(map(text, known))
    else:
        names = [queue]
    _, found = yield from ranking.summaries(scope, names, policies.letters_of)
    named = {
        (policies.letters_of(one.queue), part.group)
        for one in found
        for part in one.groups
        if part.group is not None
    }
    lengths = yield from in_batches([("XLEN", scope.keys.dead_letters(*box)) for box in named])
    there = zip(named, lengths, strict=True)
    chosen = {box for box, length in there if isinstance(length, int) and length}
    wanted = None if queue is None else policies.letters_of(queue)
    chosen |= {(name, one) for name in seen if wanted in (None, name) for one in seen[name]}
    return [LetterBox(*one) for one in sorted(chosen) if group in (None, one[1])]


def counted(
    scope: Scope, found: Sequence[LetterBox], most: int, error: str | None = None
) -> Op[tuple[list[ErrorSum], int, bool]]:
    """Return the errors of the newest letters, the number of letters read, and whether all were.

    At most about `most` letters are read, evenly from all streams. With `error`, only errors with its
    fingerprint are counted.
    """
    sums: dict[tuple[str, str, str], ErrorSum] = {}
    only = "" if error is None else f"={error}"
    starts = dict.fromkeys(found, "+")
    read = scripts = 0
    share = max(1, min(1000, most // max(1, len(found))))
    while starts and read < most and scripts < SCRIPTS:
        for at in range(0, len(found), _AT_ONCE):
            page = [box for box in found[at : at + _AT_ONCE] if box in starts]
            if not page:
                continue
            rows = yield Script(
                "count_errors",
                [key for box in page for key in _keys(scope, box)],
                (share, READ_BYTES, only, *(starts[box] for box in page)),
            )
            scripts += 1
            for box, row in zip(page, rows, strict=True):
                read += row[0]
                starts[box] = text(row[1])
                if not starts[box]:
                    del starts[box]
                _add(sums, box, row[2:])
    return list(sums.values()), read, not starts


def _add(sums: dict[tuple[str, str, str], ErrorSum], box: LetterBox, row: Sequence[Any]) -> None:
    for at in range(0, len(row), 7):
        queue, error, letters, replayed, newest, oldest, fingerprint = row[at : at + 7]
        name, line = text(queue) or box.name, text(error)
        before = sums.get((name, box.group, line))
        if before is not None:
            letters, replayed, newest = letters + before[3], replayed + before[4], before[5]
        sums[name, box.group, line] = (
            *(name, box.group, line),
            *(letters, replayed, newest, oldest, fingerprint),
        )


def _keys(scope: Scope, box: LetterBox) -> tuple[str, str, str]:
    keys = scope.keys
    return (
        keys.dead_letters(box.name, box.group),
        keys.purged(box.name, box.group),
        keys.replayed(box.name, box.group),
    )


def keys_of(scope: Scope, found: Sequence[LetterBox]) -> list[str]:
    """Return the keys of dead-letter streams."""
    return [scope.keys.dead_letters(box.name, box.group) for box in found]


def purged_of(scope: Scope, found: Sequence[LetterBox]) -> list[str]:
    """Return the keys of the sets of purged letters."""
    return [scope.keys.purged(box.name, box.group) for box in found]
