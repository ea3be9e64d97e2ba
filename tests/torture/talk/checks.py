"""Checks of talk: each returns what is wrong."""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.torture.history import FAIL, OK
from tests.torture.talk.agent import CLAIM, GAP, HEARD, RECALL, SURE, TORN
from tests.torture.talk.evidence import (
    NoteOperation,
    Position,
    Reading,
    ReadingStep,
    TalkEvidence,
)

_BEGIN: Position = (0, 0)
_NEVER = 2**63


class Wrong(NamedTuple):
    """A wrong entry, and the reading in which it was found."""

    reading: Reading
    id: Position


class GapReport(NamedTuple):
    """Reports of a gap in the same range, which ends before `high`.

    The cursor stood at `sure` or later, and nothing up to `low` was missed. `counts` are the reported
    sizes: a reader that dies gets another report.
    """

    sure: Position
    low: Position
    high: Position
    counts: Sequence[int]


def lost(evidence: TalkEvidence) -> list[Wrong]:
    """Acknowledged messages that an agent neither heard nor was reported to have missed."""
    said = sorted(evidence.acknowledged().items())
    found = []
    for (agent, topic), steps in evidence.readings.items():
        heard = {step.id for step in steps if step.op == HEARD}
        missing = [
            at for at, one in said if at not in heard and (topic is None or one.topic == topic)
        ]
        for report in _gap_reports(steps):
            first = bisect.bisect_right(missing, report.low)
            last = bisect.bisect_left(missing, report.high)
            if last - first <= sum(report.counts):
                del missing[first:last]
        found += [Wrong((agent, topic), at) for at in missing]
    return found


def told_too_many(evidence: TalkEvidence) -> list[tuple[Reading, int, int]]:
    """Gaps that were reported larger than they can be, with the largest possible size."""
    known = sorted(evidence.entries.keys() | evidence.acknowledged().keys())
    heard = {content.text for contents in evidence.entries.values() for content in contents}
    # Messages that may have been said, and trimmed before an agent heard them.
    unheard = sum(1 for text, one in evidence.said.items() if one.id is None and text not in heard)
    events = collections.Counter(
        content.text
        for contents in evidence.entries.values()
        for content in contents
        if content.event
    )
    written = [note for note in evidence.notes if note.op != RECALL and note.phase != FAIL]
    unheard += max(0, len(written) - events.total())
    found = []
    for reading, steps in evidence.readings.items():
        for report in _gap_reports(steps):
            first = bisect.bisect_right(known, report.sure)
            room = bisect.bisect_left(known, report.high) - first + unheard
            found += [(reading, count, room) for count in report.counts if count > room]
    return found


def heard_twice(evidence: TalkEvidence) -> list[Wrong]:
    """Entries that came again without a death or an error, or although the cursor had moved past them."""
    return _misread(evidence, "again")


def out_of_order(evidence: TalkEvidence) -> list[Wrong]:
    """Entries that an agent heard after a later one, and messages with a lower id than the one before."""
    found = _misread(evidence, "late")
    spoken: dict[str, list[tuple[int, Position]]] = collections.defaultdict(list)
    for at, said in evidence.acknowledged().items():
        spoken[said.agent].append((said.number, at))
    for agent, numbers in spoken.items():
        found += [
            Wrong((agent, None), after)
            for (_, before), (_, after) in itertools.pairwise(sorted(numbers))
            if after <= before
        ]
    return found


def cursor_back(evidence: TalkEvidence) -> list[Wrong]:
    """Cursors that moved back, or did not move past what was heard."""
    return _misread(evidence, "back")


def invented(evidence: TalkEvidence) -> list[tuple[Position, str]]:
    """Entries that were never said: not at all, by another agent, on another topic, or under another id."""
    keys = {note.key for note in evidence.notes}
    found = []
    for at, contents in evidence.entries.items():
        content = next(iter(contents))
        if len(contents) > 1:
            found.append((at, f"was heard as {sorted(map(str, contents))}"))
        elif content.event is not None:
            if content.text.removeprefix("noted ") not in keys:
                found.append((at, content.text))
        else:
            said = evidence.said.get(content.text)
            if said is None or (said.agent, said.topic) != (content.agent, content.topic):
                found.append((at, content.text))
            elif said.id not in (None, at):
                found.append((at, f"{content.text} was acknowledged as {said.id}"))
    return found


def doubled(evidence: TalkEvidence) -> dict[str, list[Position]]:
    """Messages that were said once, and exist under more than one id."""
    found: dict[str, list[Position]] = collections.defaultdict(list)
    for at, contents in evidence.entries.items():
        for content in contents:
            if content.event is None:
                found[content.text].append(at)
    return {text: sorted(ids) for text, ids in found.items() if len(ids) > 1}


def refused_and_there(evidence: TalkEvidence) -> set[str]:
    """Messages that were refused, and exist all the same."""
    there = {content.text for contents in evidence.entries.values() for content in contents}
    return {text for text, said in evidence.said.items() if said.phase == FAIL and text in there}


def _misread(evidence: TalkEvidence, wanted: str) -> list[Wrong]:
    """Return entries that came `again` or `late`, with their reader past them, or cursors moved `back`."""
    found = []
    for reading, steps in evidence.readings.items():
        sure = passed = _BEGIN
        seen = set()
        for step in steps:
            how, at = None, step.id
            if step.op == TORN:
                passed = sure
            elif step.op == SURE:
                how = "back" if at < passed else None
                sure = max(sure, at)
                passed = max(passed, sure)
            elif step.op == HEARD:
                if at <= passed:
                    how = "again" if at in seen else "late"
                passed = max(passed, at)
                seen.add(at)
            if how == wanted:
                found.append(Wrong(reading, at))
    return found


def _gap_reports(steps: Sequence[ReadingStep]) -> Iterator[GapReport]:
    """Yield the reported gaps, those in the same range together."""
    sure = low = _BEGIN
    counts: list[int] = []
    for step in steps:
        at = step.id
        if step.op == GAP:
            counts.append(step.missed)
        elif step.op in (HEARD, SURE):
            if counts:
                # Whether the cursor's own entry still exists is not known.
                high = at if step.op == HEARD else (at[0], at[1] + 1)
                yield GapReport(sure, low, high, counts)
                counts = []
            low = max(low, at)
            if step.op == SURE:
                sure = max(sure, at)
    if counts:
        yield GapReport(sure, low, (2**64, 0), counts)


# -- notes --


class _Write(NamedTuple):
    """A write: it took effect after `begun`, and is visible to all from `done` on."""

    begun: int
    done: int


def stale_notes(evidence: TalkEvidence) -> list[NoteOperation]:
    """Reads of a value that had certainly been replaced before."""
    found = []
    for notes in _by_key(evidence).values():
        writes = _writes(notes)
        done = sorted((write.done, write.begun) for write in writes.values())
        # The latest begin among all writes that were done by then.
        newest = list(itertools.accumulate((begun for _, begun in done), max))
        for read in notes:
            if read.op != RECALL or read.phase != OK:
                continue
            before = bisect.bisect_left(done, (read.invoked,))
            write = writes.get(read.value or "", _Write(0, -1 if read.value is None else _NEVER))
            if before and write.done < newest[before - 1]:
                found.append(read)
    return found


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


CHECKS = (
    lost,
    heard_twice,
    out_of_order,
    cursor_back,
    told_too_many,
    invented,
    doubled,
    refused_and_there,
    stale_notes,
    unwritten_notes,
    claimed_twice,
)
