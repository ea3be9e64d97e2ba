"""What must be true of talk, whoever died meanwhile; each check returns what is wrong."""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentbus.torture.history import FAIL
from agentbus.torture.talk.registers import claimed_twice, stale_notes, unwritten_notes
from agentbus.torture.talk.story import (
    Gap,
    Heard,
    Position,
    Reading,
    Step,
    Story,
    Sure,
    Torn,
    acknowledged,
)

_BEGIN: Position = (0, 0)


class Wrong(NamedTuple):
    """An entry with which something is wrong, and whose reading it was."""

    reading: Reading
    id: Position


class Telling(NamedTuple):
    """Gaps that were told about the same stretch, which ends before `high`.

    The cursor stood at `sure` or later, and up to `low` nothing was missed. `counts` are what was told,
    one after the other: a reader that dies is told again.
    """

    sure: Position
    low: Position
    high: Position
    counts: Sequence[int]


def lost(story: Story) -> list[Wrong]:
    """Messages that were acknowledged, and that an agent neither heard nor was told to have missed."""
    said = sorted(acknowledged(story).items())
    found = []
    for (agent, topic), steps in story.readings.items():
        heard = {step.id for step in steps if isinstance(step, Heard)}
        missing = [
            at for at, one in said if at not in heard and (topic is None or one.topic == topic)
        ]
        for telling in _tellings(steps):
            first = bisect.bisect_right(missing, telling.low)
            last = bisect.bisect_left(missing, telling.high)
            if last - first <= sum(telling.counts):
                del missing[first:last]
        found += [Wrong((agent, topic), at) for at in missing]
    return found


def told_too_many(story: Story) -> list[tuple[Reading, int, int]]:
    """Gaps that were told to be larger than what can have been missed, with how large they can be."""
    known = sorted(story.entries.keys() | acknowledged(story).keys())
    heard = {content.text for contents in story.entries.values() for content in contents}
    # What was maybe said, and was trimmed away before anybody heard it.
    unheard = sum(1 for text, one in story.said.items() if one.id is None and text not in heard)
    events = collections.Counter(
        content.text for contents in story.entries.values() for content in contents if content.event
    )
    written = [note for note in story.notes if note.op != "recall" and note.phase != FAIL]
    unheard += max(0, len(written) - events.total())
    found = []
    for reading, steps in story.readings.items():
        for telling in _tellings(steps):
            first = bisect.bisect_right(known, telling.sure)
            room = bisect.bisect_left(known, telling.high) - first + unheard
            found += [(reading, count, room) for count in telling.counts if count > room]
    return found


def heard_twice(story: Story) -> list[Wrong]:
    """What came again without a death or trouble since, or although the cursor had moved past it."""
    return [Wrong(reading, at) for reading, at, again in _backward(story) if again]


def out_of_order(story: Story) -> list[Wrong]:
    """What an agent heard after something later, and what was said before something earlier."""
    found = [Wrong(reading, at) for reading, at, again in _backward(story) if not again]
    spoken: dict[str, list[tuple[int, Position]]] = collections.defaultdict(list)
    for at, said in acknowledged(story).items():
        spoken[said.agent].append((said.number, at))
    for agent, numbers in spoken.items():
        found += [
            Wrong((agent, None), after)
            for (_, before), (_, after) in itertools.pairwise(sorted(numbers))
            if after <= before
        ]
    return found


def cursor_back(story: Story) -> list[Wrong]:
    """Cursors that moved back, or that did not come past what was heard to its end."""
    found = []
    for reading, steps in story.readings.items():
        sure = heard = _BEGIN
        for step in steps:
            if isinstance(step, Torn):
                heard = sure
            elif isinstance(step, Heard):
                heard = max(heard, step.id)
            elif isinstance(step, Sure):
                if step.cursor < max(sure, heard):
                    found.append(Wrong(reading, step.cursor))
                sure = heard = max(sure, step.cursor)
    return found


def invented(story: Story) -> list[tuple[Position, str]]:
    """Entries that nobody said: not at all, not this agent, not so, or not under this id."""
    keys = {note.key for note in story.notes}
    found = []
    for at, contents in story.entries.items():
        content = next(iter(contents))
        if len(contents) > 1:
            found.append((at, f"was heard as {sorted(map(str, contents))}"))
        elif content.event is not None:
            if content.text.removeprefix("noted ") not in keys:
                found.append((at, content.text))
        else:
            said = story.said.get(content.text)
            if said is None or (said.agent, said.topic) != (content.agent, content.topic):
                found.append((at, content.text))
            elif said.id not in (None, at):
                found.append((at, f"{content.text} was acknowledged as {said.id}"))
    return found


def doubled(story: Story) -> dict[str, list[Position]]:
    """Messages that were said once, and are there under more than one id."""
    found: dict[str, list[Position]] = collections.defaultdict(list)
    for at, contents in story.entries.items():
        for content in contents:
            if content.event is None:
                found[content.text].append(at)
    return {text: sorted(ids) for text, ids in found.items() if len(ids) > 1}


def refused_and_there(story: Story) -> set[str]:
    """Messages that were refused, and are there all the same."""
    there = {content.text for contents in story.entries.values() for content in contents}
    return {text for text, said in story.said.items() if said.phase == FAIL and text in there}


def ended_by_themselves(story: Story) -> list[str]:
    """Agents that gave up: trouble of the server's is no reason to."""
    return list(story.ended)


def never_caught_up(story: Story) -> list[str]:
    """Agents that had not said and heard everything in all the time that they had."""
    return list(story.late)


def _backward(story: Story) -> Iterator[tuple[Reading, Position, bool]]:
    """Yield what came although its reader was past it, and whether it had come before."""
    for reading, steps in story.readings.items():
        sure = passed = _BEGIN
        seen = set()
        for step in steps:
            if isinstance(step, Torn):
                passed = sure
            elif isinstance(step, Sure):
                sure = max(sure, step.cursor)
                passed = max(passed, sure)
            elif isinstance(step, Heard):
                if step.id <= passed:
                    yield reading, step.id, step.id in seen
                passed = max(passed, step.id)
                seen.add(step.id)


def _tellings(steps: Sequence[Step]) -> Iterator[Telling]:
    """Yield the gaps that were told, those about the same stretch together."""
    sure = low = _BEGIN
    counts: list[int] = []
    for step in steps:
        if isinstance(step, Gap):
            counts.append(step.missed)
        elif isinstance(step, (Heard, Sure)):
            at = step.id if isinstance(step, Heard) else step.cursor
            if counts:
                # Of a cursor's own entry one cannot know that it is still there.
                high = at if isinstance(step, Heard) else (at[0], at[1] + 1)
                yield Telling(sure, low, high, counts)
                counts = []
            low = max(low, at)
            if isinstance(step, Sure):
                sure = max(sure, at)
    if counts:
        yield Telling(sure, low, (2**64, 0), counts)


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
    ended_by_themselves,
    never_caught_up,
)
