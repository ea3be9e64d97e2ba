"""What must be true of the database in the end; the checks know nothing of how it was done."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from agentbus.torture.verdict import found_by


class Row(NamedTuple):
    """What was committed with an event."""

    uuid: str
    stream: str
    producer: str
    number: int
    place: int | None


class Story(NamedTuple):
    """All that is known at the end: `effects` by consumer, in the order in which they were done.

    `acknowledged` and `taken_back` are what producers were told, or did: that it is committed, or is not.
    """

    reads: Mapping[str, str]
    committed: Sequence[Row]
    effects: Mapping[str, Sequence[str]]
    parked: Sequence[str] = ()
    waiting: Mapping[str, int] = {}
    ended: Sequence[str] = ()
    tracebacks: Sequence[str] = ()
    acknowledged: Collection[str] = ()
    taken_back: Collection[str] = ()


def forgotten(story: Story) -> list[str]:
    """Events whose commit was acknowledged, and which the database does not have."""
    return sorted(set(story.acknowledged) - {row.uuid for row in story.committed})


def brought_back(story: Story) -> list[str]:
    """Events that were rolled back, and which the database has."""
    return sorted(set(story.taken_back) & {row.uuid for row in story.committed})


def lost(story: Story) -> list[tuple[str, str]]:
    """Events that were committed, and that a consumer did not act on."""
    return [
        (consumer, row.uuid)
        for consumer, stream in story.reads.items()
        for done in [set(story.effects.get(consumer, ()))]
        for row in story.committed
        if row.stream == stream and row.uuid not in done
    ]


def doubled(story: Story) -> list[tuple[str, str, int]]:
    """Events that a consumer acted on more than once, and how often."""
    return [
        (consumer, uuid, times)
        for consumer, done in story.effects.items()
        for uuid, times in collections.Counter(done).items()
        if times > 1
    ]


def rolled_back_and_seen(story: Story) -> list[tuple[str, str]]:
    """Effects of what nobody committed, or of another stream's events."""
    streams = {row.uuid: row.stream for row in story.committed}
    return [
        (consumer, uuid)
        for consumer, done in story.effects.items()
        for uuid in done
        if streams.get(uuid) != story.reads[consumer]
    ]


def out_of_order(story: Story) -> list[tuple[str, str, str]]:
    """Events that a consumer acted on before one that was committed earlier."""
    rows = {row.uuid: row for row in story.committed}
    found = []
    for consumer, done in story.effects.items():
        chains: dict[object, list[tuple[int, str]]] = collections.defaultdict(list)
        for uuid in dict.fromkeys(done):
            row = rows.get(uuid)
            if row is not None:
                chains[row.producer].append((row.number, uuid))
                if row.place is not None:
                    chains["all"].append((row.place, uuid))
        for chain in chains.values():
            found += [
                (consumer, before[1], after[1])
                for before, after in itertools.pairwise(chain)
                if before[0] > after[0]
            ]
    return found


def parked(story: Story) -> list[str]:
    """Events that were put aside, though none is at fault."""
    return list(story.parked)


def stuck(story: Story) -> dict[str, int]:
    """What waits for ever."""
    return {name: number for name, number in story.waiting.items() if number}


def ended_by_themselves(story: Story) -> list[str]:
    """Processes that gave up: no trouble here is a reason to."""
    return list(story.ended)


def confused(story: Story) -> list[str]:
    """Processes that wrote a traceback: trouble is told in a sentence."""
    return list(story.tracebacks)


CHECKS = (
    forgotten,
    brought_back,
    lost,
    doubled,
    rolled_back_and_seen,
    out_of_order,
    parked,
    stuck,
    ended_by_themselves,
    confused,
)


def violations(story: Story) -> dict[str, Collection[Any]]:
    """Return what each check found, without those that found nothing."""
    return found_by(story, CHECKS)
