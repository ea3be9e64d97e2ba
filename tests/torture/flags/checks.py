"""Checks of what the contenders' histories say: each returns what is wrong."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.torture.flags.awaiters import failed_falsely, never_woken, woken_falsely
from tests.torture.flags.evidence import (
    ANNOUNCE,
    FAILING,
    RELEASE,
    RENEW,
    SATISFY,
    WRITE,
    Act,
    FlagEvidence,
)

_NS = 1_000_000_000
_OUTCOMES = (SATISFY, FAILING)
_ENDS = (*_OUTCOMES, RELEASE)


def false_holders(evidence: FlagEvidence) -> list[tuple[Act, Act]]:
    """Two holders at once: by one token, or by a stale write or a stale end that was accepted."""
    return [*_same_token(evidence), *_stale_writes(evidence), *_stale_ends(evidence)]


def token_back(evidence: FlagEvidence) -> list[tuple[Act, Act]]:
    """Tokens that were granted after a higher one, in real time."""
    return [pair for acts in evidence.of(ANNOUNCE).values() for pair in _outdated(acts, acts)]


def held_twice_in_time(evidence: FlagEvidence) -> list[tuple[Act, Act]]:
    """Two acknowledged holds that certainly overlap: no expiry, force or end between them."""
    wrong = []
    for acts in evidence.of(ANNOUNCE, RENEW, *_ENDS).values():
        by = defaultdict(list)
        for act in acts:
            by[act.who].append(act)
        holds = sorted(_first_of_each([a for a in acts if a.op == ANNOUNCE and a.ok]), key=_order)
        for one, two in itertools.pairwise(holds):
            if one.token is not None and two.token != _token(one) + 1:
                # There was a hold between them, and how it ended is not known.
                continue
            if one.who == two.who or two.returned < one.returned or _forced(two, by[two.who]):
                continue
            meanwhile = _invoked_between(by[one.who], one.invoked, two.returned)
            if two.returned < _sure_until(one, meanwhile, evidence.shifted):
                wrong.append((one, two))
    return wrong


def held_unknowingly(evidence: FlagEvidence) -> list[Act]:
    """Renewed holds of agents all of whose announcements had failed."""
    wrong = []
    for acts in evidence.of(ANNOUNCE).values():
        possible: set[str] = set()
        for act in acts:
            if act.ok and act.told.get("renewed") and act.who not in possible:
                wrong.append(act)
            if act.possible:
                possible.add(act.who)
    return wrong


def satisfied_lost(evidence: FlagEvidence) -> list[Act]:
    """Acknowledged satisfactions without a completion, though the flag was not announced again."""
    return list(_lost(evidence, SATISFY, evidence.kept))


def failed_lost(evidence: FlagEvidence) -> list[Act]:
    """Acknowledged failures without a record, though the flag was not announced again."""
    return list(_lost(evidence, FAILING, evidence.failures))


CHECKS = (
    false_holders,
    token_back,
    held_twice_in_time,
    held_unknowingly,
    woken_falsely,
    failed_falsely,
    never_woken,
    satisfied_lost,
    failed_lost,
)


_invoked, _returned = operator.attrgetter("invoked"), operator.attrgetter("returned")


def _order(act: Act) -> tuple[int, float]:
    return act.token or 0, act.returned


def _token(act: Act) -> int:
    assert act.token is not None
    return act.token


def _higher(one: Act, two: Act) -> Act:
    return max(one, two, key=_token)


def _lost(evidence: FlagEvidence, end: str, kept: Mapping[str, int | None]) -> Iterator[Act]:
    announced = evidence.of(ANNOUNCE)
    for flag, acts in evidence.of(*_OUTCOMES).items():
        last = max((a for a in acts if a.ok), key=_order, default=None)
        if last is None or last.op != end or flag not in kept:
            continue
        later = [a for a in announced.get(flag, ()) if a.possible and a.returned > last.invoked]
        if not later and kept[flag] != last.token:
            yield last


def _first_of_each(takes: Sequence[Act]) -> Iterator[Act]:
    """Yield the first announcement of each hold: the others only renewed it."""
    known = set()
    for act in takes:
        if act.hold not in known:
            known.add(act.hold)
            yield act


def _same_token(evidence: FlagEvidence) -> Iterator[tuple[Act, Act]]:
    for acts in evidence.of(ANNOUNCE).values():
        of: dict[int, Act] = {}
        for act in acts:
            if act.ok and act.token is not None:
                first = of.setdefault(act.token, act)
                if first.who != act.who:
                    yield first, act


def _stale_writes(evidence: FlagEvidence) -> Iterator[tuple[Act, Act]]:
    for acts in evidence.of(WRITE).values():
        accepted = sorted((a for a in acts if a.ok), key=_returned)
        over: dict[object, Act] = {}
        for one, two in itertools.pairwise(accepted):
            if one.hold == two.hold:
                if one.who != two.who:
                    yield one, two
                continue
            over[one.hold] = two
            if two.hold in over or (one.token is not None and _token(two) < _token(one)):
                yield over.get(two.hold, one), two


def _stale_ends(evidence: FlagEvidence) -> Iterator[tuple[Act, Act]]:
    ends = evidence.of(RENEW, *_ENDS)
    for flag, acts in evidence.of(ANNOUNCE).items():
        yield from _outdated(ends.get(flag, ()), acts)


def _outdated(acts: Sequence[Act], grants: Sequence[Act]) -> Iterator[tuple[Act, Act]]:
    """Yield acts by a lower token than was granted before they were invoked, with that grant."""
    granted = sorted((a for a in grants if a.ok and a.token is not None), key=_returned)
    highest = list(itertools.accumulate(granted, _higher))
    for act in acts:
        at = bisect.bisect_left(granted, float(act.invoked), key=_returned)
        if at and act.ok and act.token is not None and act.token < _token(highest[at - 1]):
            yield highest[at - 1], act


def _forced(hold: Act, of_holder: Sequence[Act]) -> bool:
    """Tell whether a hold may have been taken by force."""
    if not hold.told.get("renewed"):
        return bool(hold.asked.get("force"))
    # It was taken by an announcement with an unknown outcome.
    return any(a.asked.get("force") for a in of_holder)


def _invoked_between(acts: Sequence[Act], after: float, before: float) -> Sequence[Act]:
    first = bisect.bisect_right(acts, after, key=_invoked)
    return acts[first : bisect.bisect_left(acts, before, key=_invoked)]


def _sure_until(hold: Act, meanwhile: Sequence[Act], shifted: bool) -> float:
    """Return until when a hold certainly lasted; `meanwhile` is what its holder did with the flag."""
    ended = min((a.invoked for a in meanwhile if a.op in _ENDS), default=math.inf)
    again = [a for a in meanwhile if a.op in (ANNOUNCE, RENEW)]
    if hold.told.get("left") is None and all(a.asked.get("ttl") is None for a in again):
        return ended
    if shifted or again or hold.told.get("renewed"):
        return 0.0
    return min(ended, hold.invoked + float(hold.told["left"]) * _NS)
