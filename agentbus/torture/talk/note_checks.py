"""Checks of notes: a read returns the last value written, or one that is being written."""

from __future__ import annotations

import bisect
import collections
from typing import NamedTuple

from agentbus.torture.history import FAIL, OK
from agentbus.torture.talk.agent import CLAIM, RECALL
from agentbus.torture.talk.evidence import NoteOperation, TalkEvidence

_NEVER = 2**63


class _Write(NamedTuple):
    """A write: it took effect after `begun`, and is visible to all from `done` on."""

    begun: int
    done: int


def stale_notes(evidence: TalkEvidence) -> list[NoteOperation]:
    """Reads of a value that had certainly been replaced before."""
    found = []
    for notes in _by_key(evidence).values():
        writes = _writes(notes)
        # The latest begin among all writes that were done by then.
        done = sorted((write.done, write.begun) for write in writes.values())
        times: list[int] = []
        newest: list[int] = []
        for at, begun in done:
            times.append(at)
            newest.append(max(begun, newest[-1]) if newest else begun)
        for read in notes:
            if read.op != RECALL or read.phase != OK:
                continue
            before = bisect.bisect_left(times, read.invoked)
            if not before:
                continue
            visible = -1 if read.value is None else _own(writes, read)
            if visible < newest[before - 1]:
                found.append(read)
    return found


def _own(writes: dict[str, _Write], read: NoteOperation) -> int:
    write = writes.get(read.value or "")
    return _NEVER if write is None else write.done


def _by_key(evidence: TalkEvidence) -> dict[str, list[NoteOperation]]:
    found: dict[str, list[NoteOperation]] = collections.defaultdict(list)
    for note in evidence.notes:
        found[note.key].append(note)
    return found


def _writes(notes: list[NoteOperation]) -> dict[str, _Write]:
    """Return the writes by value; a value that was read was written by then."""
    found: dict[str, _Write] = {}
    for note in notes:
        if note.op != RECALL and note.phase != FAIL and note.value is not None:
            found[note.value] = _Write(note.invoked, note.ended if note.phase == OK else _NEVER)
    for note in notes:
        if note.op == RECALL and note.phase == OK and note.value in found:
            write = found[note.value]
            found[note.value] = _Write(write.begun, min(write.done, note.ended))
    return found


def unwritten_notes(evidence: TalkEvidence) -> list[NoteOperation]:
    """Reads of a value that was never written, whose write was refused, or that was written later."""
    found = []
    for notes in _by_key(evidence).values():
        writes = _writes(notes)
        for read in notes:
            if read.op == RECALL and read.phase == OK and read.value is not None:
                write = writes.get(read.value)
                if write is None or write.begun > read.ended:
                    found.append(read)
    return found


def claimed_twice(evidence: TalkEvidence) -> list[str]:
    """Notes, written only if absent, that more than one agent was acknowledged to have written."""
    won = collections.Counter(
        note.key for note in evidence.notes if note.op == CLAIM and note.phase == OK
    )
    return [key for key, number in won.items() if number > 1]
