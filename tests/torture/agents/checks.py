"""Checks of messages, readings, answers and receipts: each returns what is wrong."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from tests.torture.agents.agent import GIVE, RECEIPT, REPLY, TELL
from tests.torture.agents.evidence import (
    AgentAct,
    AgentEvidence,
    InboxLook,
    Position,
    Reading,
    entry_of,
)
from tests.torture.agents.lease_checks import held_twice, refused_falsely, token_back
from tests.torture.history import FAIL

_SENT = (TELL, GIVE)


def lost(evidence: AgentEvidence) -> list[str]:
    """Acknowledged messages that their reader never read."""
    read = {reading.id for reading in evidence.readings}
    return [act.said["i"] for act in evidence.of(*_SENT) if act.ok and act.said["i"] not in read]


def doubled(evidence: AgentEvidence) -> list[str]:
    """Messages that were sent once, and are in an inbox more than once."""
    asked = {act.asked["t"] for act in evidence.of(*_SENT)}
    found = Counter(_texts(evidence))
    return [text for text, number in found.items() if number > 1 and text in asked]


def refused_and_there(evidence: AgentEvidence) -> list[str]:
    """Messages that were refused, and are in an inbox all the same."""
    there = set(_texts(evidence))
    return [
        act.asked["t"]
        for act in evidence.of(*_SENT)
        if act.phase == FAIL and act.asked["t"] in there
    ]


def passed_unread(evidence: AgentEvidence) -> list[tuple[str, Position]]:
    """Messages that counted as read before they were handed out."""
    wrong = []
    first = _first_readings(evidence)
    for reader, looks in _by_reader(evidence.looks).items():
        entries = sorted(evidence.inboxes.get(reader, {}))
        done: Position = (0, 0)
        for look in looks:
            low = bisect.bisect_right(entries, done)
            covered = entries[low : bisect.bisect_right(entries, look.heard)]
            wrong += [
                (reader, entry)
                for entry in (*covered, *look.beyond)
                if first.get((reader, entry), look.at + 1) > look.at
            ]
            done = max(done, look.heard)
    return wrong


def read_again(evidence: AgentEvidence) -> list[Reading]:
    """Messages that were handed out again after they had counted as read."""
    wrong = []
    looks = _by_reader(evidence.looks)
    times = {reader: [look.at for look in found] for reader, found in looks.items()}
    known: set[str] = set()
    for reading in evidence.readings:
        if reading.id not in known:
            known.add(reading.id)
            continue
        at = bisect.bisect_left(times.get(reading.reader, []), reading.since)
        if at and looks[reading.reader][at - 1].has(entry_of(reading.id)[0]):
            wrong.append(reading)
    return wrong


def overfull(evidence: AgentEvidence) -> list[tuple[str, int]]:
    """Inboxes that certainly held more unread messages than their bound, with the most of them."""
    read = _first_readings(evidence)
    moves: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for act in evidence.of(*_SENT):
        if act.ok:
            entry, reader = entry_of(act.said["i"])
            until = read.get((reader, entry))
            if until is None or until > act.returned:
                moves[reader] += [(act.returned, 1)] + ([(until, -1)] if until else [])
    wrong = []
    for reader, steps in moves.items():
        unread = most = 0
        for _, step in sorted(steps):
            unread += step
            most = max(most, unread)
        if most > evidence.bound:
            wrong.append((reader, most))
    return wrong


def refused_early(evidence: AgentEvidence) -> list[AgentAct]:
    """Messages that were refused by an inbox that cannot have been full."""
    begun: dict[str, list[int]] = defaultdict(list)
    for act in evidence.of(*_SENT, REPLY):
        if act.possible:
            begun[_recipient(act, evidence)].append(act.invoked)
    over = {
        reader: _counts(looks, evidence) for reader, looks in _by_reader(evidence.looks).items()
    }
    wrong = []
    for act in evidence.of(*_SENT):
        if act.said.get("error") != "InboxFull":
            continue
        reader = act.asked["to"]
        times, counts = over.get(reader, ([], []))
        at = bisect.bisect_left(times, act.invoked)
        read = counts[at - 1] if at else 0
        if bisect.bisect_left(begun[reader], act.returned) - read < evidence.bound:
            wrong.append(act)
    return wrong


def answered_twice(evidence: AgentEvidence) -> list[str]:
    """Messages to which there is more than one answer."""
    found: dict[str, set[object]] = defaultdict(set)
    for agent, inbox in evidence.inboxes.items():
        for entry, fields in inbox.items():
            if "reply_to" in fields:
                found[fields["reply_to"]].add((entry, agent))
    for act in evidence.of(REPLY):
        if act.ok:
            found[act.asked["i"]].add(entry_of(act.said["a"]))
    return [known for known, answers in found.items() if len(answers) > 1]


def claimed_early(evidence: AgentEvidence) -> list[AgentAct]:
    """Receipts of messages as read or answered before they can have been."""
    read = _first_readings(evidence)
    answers: dict[str, int] = {}
    for act in evidence.of(REPLY):
        if act.possible:
            answers.setdefault(act.asked["i"], act.invoked)
    wrong = []
    for act in evidence.of(RECEIPT):
        state = act.said.get("s") if act.ok else None
        entry, reader = entry_of(act.asked["i"])
        if state == "read" and read.get((reader, entry), act.returned + 1) > act.returned:
            wrong.append(act)
        if state == "answered" and answers.get(act.asked["i"], act.returned + 1) > act.returned:
            wrong.append(act)
    return wrong


def untrue_in_the_end(evidence: AgentEvidence) -> list[AgentAct]:
    """Last receipts that do not say what became of a message: it was read, and answered or not."""
    answers = {act.asked["i"]: act.said["a"] for act in evidence.of(REPLY) if act.ok}
    wrong = []
    last = {
        act.asked["i"]: act
        for act in evidence.of(RECEIPT)
        if act.ok or act.said.get("error") == "NotFound"
    }
    for known, act in last.items():
        answer = answers.get(known)
        # Of an answer whose outcome is unknown, nothing is wanted.
        if act.said.get("s") not in ("read", "answered") or (answer and act.said["a"] != answer):
            wrong.append(act)
    return wrong


CHECKS = (
    lost,
    doubled,
    refused_and_there,
    passed_unread,
    read_again,
    overfull,
    refused_early,
    answered_twice,
    claimed_early,
    untrue_in_the_end,
    held_twice,
    token_back,
    refused_falsely,
)


def _texts(evidence: AgentEvidence) -> list[str]:
    return [
        fields.get("message", "")
        for inbox in evidence.inboxes.values()
        for fields in inbox.values()
    ]


def _first_readings(evidence: AgentEvidence) -> dict[tuple[str, Position], int]:
    """Return from when on each message may have counted as read."""
    found: dict[tuple[str, Position], int] = {}
    for reading in evidence.readings:
        key = (reading.reader, entry_of(reading.id)[0])
        found[key] = min(reading.since, found.get(key, reading.since))
    return found


def _by_reader(looks: Sequence[InboxLook]) -> dict[str, list[InboxLook]]:
    found: dict[str, list[InboxLook]] = defaultdict(list)
    for look in sorted(looks, key=lambda look: look.at):
        found[look.reader].append(look)
    return found


def _counts(looks: Sequence[InboxLook], evidence: AgentEvidence) -> tuple[list[int], list[int]]:
    """Return the times of looks, and how many messages had been read by then."""
    entries = sorted(evidence.inboxes.get(looks[0].reader, {}))
    counts = [bisect.bisect_right(entries, look.heard) + len(look.beyond) for look in looks]
    return [look.at for look in looks], counts


def _recipient(act: AgentAct, evidence: AgentEvidence) -> Any:
    if act.op in _SENT:
        return act.asked["to"]
    entry, agent = entry_of(act.asked["i"])
    return evidence.inboxes.get(agent, {}).get(entry, {}).get("agent_id")
