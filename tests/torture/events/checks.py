"""Checks of the database in the end: each returns what is wrong."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class CommittedRow(NamedTuple):
    """What was committed with an event."""

    uuid: str
    stream: str
    producer: str
    number: int
    place: int | None


class EventsEvidence(NamedTuple):
    """What is known at the end of a run: `effects` are by consumer, in order.

    `acknowledged` are the events whose commit succeeded, `taken_back` those that were rolled back.
    """

    reads: Mapping[str, str]
    committed: Sequence[CommittedRow]
    effects: Mapping[str, Sequence[str]]
    acknowledged: Collection[str] = ()
    taken_back: Collection[str] = ()


def forgotten(evidence: EventsEvidence) -> list[str]:
    """Events whose commit succeeded, and that the database does not have."""
    return sorted(set(evidence.acknowledged) - {row.uuid for row in evidence.committed})


def brought_back(evidence: EventsEvidence) -> list[str]:
    """Events that were rolled back, and that the database has."""
    return sorted(set(evidence.taken_back) & {row.uuid for row in evidence.committed})


def lost(evidence: EventsEvidence) -> list[tuple[str, str]]:
    """Committed events that a consumer did not act on."""
    return [
        (consumer, row.uuid)
        for consumer, stream in evidence.reads.items()
        for done in [set(evidence.effects.get(consumer, ()))]
        for row in evidence.committed
        if row.stream == stream and row.uuid not in done
    ]


def doubled(evidence: EventsEvidence) -> list[tuple[str, str, int]]:
    """Events that a consumer acted on more than once, and how often."""
    return [
        (consumer, uuid, times)
        for consumer, done in evidence.effects.items()
        for uuid, times in collections.Counter(done).items()
        if times > 1
    ]


def rolled_back_and_seen(evidence: EventsEvidence) -> list[tuple[str, str]]:
    """Effects of events that were not committed, or are on another stream."""
    streams = {row.uuid: row.stream for row in evidence.committed}
    return [
        (consumer, uuid)
        for consumer, done in evidence.effects.items()
        for uuid in done
        if streams.get(uuid) != evidence.reads[consumer]
    ]


def out_of_order(evidence: EventsEvidence) -> list[tuple[str, str, str]]:
    """Events that a consumer acted on before an earlier one."""
    rows = {row.uuid: row for row in evidence.committed}
    found = []
    for consumer, done in evidence.effects.items():
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


CHECKS = (
    forgotten,
    brought_back,
    lost,
    doubled,
    rolled_back_and_seen,
    out_of_order,
)
