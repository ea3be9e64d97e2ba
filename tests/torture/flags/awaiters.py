"""Checks of awaiters: who woke for nothing, who failed for nothing, and who did not wake in time."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence

from agentbus.core.errors import FlagFailed
from tests.torture.flags.evidence import (
    ANNOUNCE,
    AWAIT,
    FAILING,
    SATISFY,
    Act,
    FlagEvidence,
)
from tests.torture.history import FAIL, OK

_Causes = Mapping[str, Sequence[Act]]

_NS = 1_000_000_000
# Of causes in the order of invocation, one of the first few was acknowledged first.
_ENOUGH = 20
_invoked = operator.attrgetter("invoked")


def woken_falsely(evidence: FlagEvidence) -> list[Act]:
    """Awaiters that woke for what never happened, or was over before they asked."""
    wrong = []
    satisfied, announced = evidence.of(SATISFY), evidence.of(ANNOUNCE)
    causes = {
        "satisfied": {
            f: [a for a in x if _may_have_been(a, evidence)] for f, x in satisfied.items()
        },
        "announced": {f: [a for a in x if a.possible] for f, x in announced.items()},
    }
    undone = {flag: _Takes(acts) for flag, acts in evidence.of(ANNOUNCE, FAILING).items()}
    for act in _awaits(evidence):
        if not act.ok:
            continue
        until = act.asked["until"]
        for flag in act.told["flags"]:
            takes = undone.get(flag) if until == "satisfied" else None
            if not _accounted(act, causes[until].get(flag, ()), takes):
                wrong.append(act)
    return wrong


def failed_falsely(evidence: FlagEvidence) -> list[Act]:
    """Awaiters that ended with a failure that never happened, or was over before they asked."""
    wrong = []
    failures = {
        flag: [act for act in acts if _may_have_been(act, evidence)]
        for flag, acts in evidence.of(FAILING).items()
    }
    undone = {flag: _Takes(acts) for flag, acts in evidence.of(ANNOUNCE, SATISFY).items()}
    for act in _awaits(evidence):
        if act.phase != FAIL or act.told.get("error") != FlagFailed.__name__:
            continue
        possible = [
            _accounted(act, failures.get(flag, ()), undone.get(flag)) for flag in act.asked["flags"]
        ]
        enough = all(possible) if act.asked.get("any") else any(possible)
        if not enough or act.asked["until"] != "satisfied":
            wrong.append(act)
    return wrong


def never_woken(evidence: FlagEvidence) -> list[Act]:
    """Awaiters that did not wake in time for what was acknowledged, be it an end or a failure."""
    satisfied, failing = evidence.of(SATISFY), evidence.of(FAILING)
    announced = evidence.of(ANNOUNCE)
    unsatisfied = {f: _Undoing(acts) for f, acts in evidence.of(ANNOUNCE, FAILING).items()}
    unfailed = {f: _Undoing(acts) for f, acts in evidence.of(ANNOUNCE, SATISFY).items()}

    def due(act: Act, causes: _Causes, undoing: Mapping[str, _Undoing]) -> list[float]:
        fresh = act.asked.get("fresh")
        return [
            _due(act, causes.get(f, ()), None if fresh else undoing.get(f, _Undoing(())), evidence)
            for f in act.asked["flags"]
        ]

    wrong = []
    for act in _awaits(evidence):
        if math.isinf(act.returned):
            continue
        failed = [math.inf]
        if act.asked["until"] == "announced":
            met = [_due(act, announced.get(f, ()), None, evidence) for f in act.asked["flags"]]
        else:
            met = due(act, satisfied, unsatisfied)
            failed = due(act, failing, unfailed)
        # One failure is enough where all must be satisfied, and the other way round.
        several = act.asked.get("any")
        soonest = min(*met, max(failed)) if several else min(max(met), *failed)
        if act.returned > soonest + evidence.bound * _NS:
            wrong.append(act)
    return wrong


def _awaits(evidence: FlagEvidence) -> Iterator[Act]:
    return (act for act in evidence.acts if act.op == AWAIT)


def _may_have_been(act: Act, evidence: FlagEvidence) -> bool:
    # A leap of the clock makes the server forget requests: the repeat of one that had worked fails.
    return act.possible or (
        evidence.shifted and act.phase == FAIL and act.told.get("error") == "NotHolder"
    )


class _Takes:
    """The acts on a flag that certainly ended what came before them."""

    def __init__(self, acts: Sequence[Act]) -> None:
        sure = [a for a in acts if a.phase == OK and not a.told.get("renewed")]
        self._invoked = [a.invoked for a in sure]
        # The earliest answer among those from here on.
        backwards = itertools.accumulate((a.returned for a in reversed(sure)), min)
        self._soonest = list(backwards)[::-1]

    def one_between(self, after: float, before: int) -> bool:
        """Tell whether one was invoked after, and answered before."""
        at = bisect.bisect_right(self._invoked, after)
        return at < len(self._soonest) and self._soonest[at] < before


def _accounted(act: Act, causes: Sequence[Act], takes: _Takes | None) -> bool:
    """Tell whether one of the causes may have woken this awaiter."""
    for at in range(bisect.bisect_left(causes, act.returned, key=_invoked) - 1, -1, -1):
        cause = causes[at]
        if act.asked.get("fresh") and cause.returned < act.invoked:
            continue
        if takes is None or not takes.one_between(cause.returned, act.invoked):
            return True
    return False


class _Undoing:
    """The acts on a flag that may have ended its state."""

    def __init__(self, acts: Sequence[Act]) -> None:
        possible = [a for a in acts if a.possible]
        self._invoked = [a.invoked for a in possible]
        self._latest = list(itertools.accumulate((a.returned for a in possible), max))

    def possible(self, after: float, before: float) -> bool:
        """Tell whether one can have happened in between."""
        at = bisect.bisect_left(self._invoked, before)
        return at > 0 and self._latest[at - 1] > after


def _due(
    act: Act, causes: Sequence[Act], undoing: _Undoing | None, evidence: FlagEvidence
) -> float:
    """Return the time by which this awaiter must have met one of the causes.

    It may look long after it was invoked: until then it meets only causes that cannot have been undone, and
    none at all if earlier ones do not count (`undoing` is None).
    """
    looks, slack = act.invoked + evidence.bound / 3 * _NS, evidence.bound * _NS
    at = bisect.bisect_right(causes, looks, key=_invoked)
    acknowledged = (causes[i] for i in range(at, len(causes)) if causes[i].ok)
    later = itertools.islice(acknowledged, _ENOUGH)
    found = min((cause.returned for cause in later), default=math.inf)
    if undoing is None:
        return found
    for i in range(at - 1, -1, -1):
        cause = causes[i]
        met = max(cause.returned, act.invoked)
        if cause.ok and not undoing.possible(cause.invoked, met + slack):
            found = min(found, met)
        if cause.ok and cause.returned < act.invoked:
            # What undid this one also undid those before it.
            break
    return found
