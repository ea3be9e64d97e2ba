"""What the contenders' histories say, and checks of that: each returns what is wrong."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentbus.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry

ANNOUNCE, RENEW, SATISFY, RELEASE = "announce", "renew", "satisfy", "release"
WRITE, AWAIT, ROUND, READY = "write", "await", "round", "ready"
# The process died before the answer.
PENDING = "pending"
_NS = 1_000_000_000
# Of causes in the order of invocation, one of the first few was acknowledged first.
_ENOUGH = 20


class Act(NamedTuple):
    """One operation: `invoked` and `returned` in ns; `returned` is infinite if no answer came.

    `asked` are the details of the invocation, `told` those of the outcome.
    """

    who: str
    op: str
    invoked: int
    returned: float
    phase: str
    asked: Mapping[str, Any]
    told: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether it certainly happened."""
        return self.phase == OK

    @property
    def possible(self) -> bool:
        """Whether it may have happened."""
        return self.phase in (OK, UNKNOWN, PENDING)

    @property
    def flag(self) -> str:
        """Its flag."""
        return str(self.asked["flag"])

    @property
    def token(self) -> int | None:
        """The fencing token that it was granted, or used."""
        found: int | None = self.told.get("token", self.asked.get("token"))
        return found

    @property
    def hold(self) -> tuple[str, object]:
        """The identity of its hold."""
        token = self.token
        return ("token", token) if token is not None else (self.who, self.asked.get("hold"))


class FlagEvidence(NamedTuple):
    """What is known at the end of a run.

    `kept` is the token in each flag's completion, None where there is none; flags that were not looked at
    are missing. `bound` is how late an awaiter may wake, in seconds. `shifted`: the server's clock was
    moved.
    """

    acts: Sequence[Act]
    kept: Mapping[str, int | None] = {}
    bound: float = 30.0
    shifted: bool = False

    def of(self, *ops: str) -> dict[str, list[Act]]:
        """Return the acts of these kinds by flag, in the order of their invocations."""
        found: dict[str, list[Act]] = defaultdict(list)
        for act in sorted(self.acts, key=lambda act: act.invoked):
            if act.op in ops:
                found[act.flag].append(act)
        return found


def paired(entries: Iterable[HistoryEntry]) -> tuple[list[Act], list[str]]:
    """Return the acts in histories, and the entries that make no sense."""
    open_: dict[tuple[str, str, object], HistoryEntry] = {}
    acts: list[Act] = []
    strange: list[str] = []
    for entry in sorted(entries, key=lambda entry: entry.at):
        if entry.op in (ROUND, READY):
            continue
        key = (entry.who, entry.op, entry.of["n"])
        if entry.phase == INVOKE:
            if key in open_:
                strange.append(f"invoked twice: {entry}")
            open_[key] = entry
            continue
        began = open_.pop(key, None)
        if began is None:
            strange.append(f"an outcome without an invocation: {entry}")
            continue
        acts.append(Act(entry.who, entry.op, began.at, entry.at, entry.phase, began.of, entry.of))
    acts += [
        Act(began.who, began.op, began.at, math.inf, PENDING, began.of, {})
        for began in open_.values()
    ]
    return acts, strange


def false_holders(evidence: FlagEvidence) -> list[tuple[Act, Act]]:
    """Two holders at once: by one token, or by a stale write or a stale end that was accepted."""
    return [*_same_token(evidence), *_stale_writes(evidence), *_stale_ends(evidence)]


def token_back(evidence: FlagEvidence) -> list[tuple[Act, Act]]:
    """Tokens that were granted after a higher one, in real time."""
    return [pair for acts in evidence.of(ANNOUNCE).values() for pair in _outdated(acts, acts)]


def held_twice_in_time(evidence: FlagEvidence) -> list[tuple[Act, Act]]:
    """Two acknowledged holds that certainly overlap: no expiry, force or end between them."""
    wrong = []
    for acts in evidence.of(ANNOUNCE, RENEW, SATISFY, RELEASE).values():
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
    undone = {flag: _Takes(acts) for flag, acts in announced.items()}
    for act in _awaits(evidence):
        if not act.ok:
            continue
        until = act.asked["until"]
        for flag in act.told["flags"]:
            takes = undone.get(flag) if until == "satisfied" else None
            if not _accounted(act, causes[until].get(flag, ()), takes):
                wrong.append(act)
    return wrong


def never_woken(evidence: FlagEvidence) -> list[Act]:
    """Awaiters that did not wake in time for what was acknowledged."""
    wrong = []
    satisfied, announced = evidence.of(SATISFY), evidence.of(ANNOUNCE)
    undoing = {flag: _Undoing(acts) for flag, acts in announced.items()}
    for act in _awaits(evidence):
        if math.isinf(act.returned):
            continue
        met: list[float] = []
        for flag in act.asked["flags"]:
            if act.asked["until"] == "announced":
                met.append(_due(act, announced.get(flag, ()), None, evidence))
            else:
                undone = None if act.asked.get("fresh") else undoing.get(flag, _Undoing(()))
                met.append(_due(act, satisfied.get(flag, ()), undone, evidence))
        due = min(met) if act.asked.get("any") else max(met)
        if act.returned > due + evidence.bound * _NS:
            wrong.append(act)
    return wrong


def satisfied_lost(evidence: FlagEvidence) -> list[Act]:
    """Acknowledged satisfactions without a completion, though the flag was not announced again."""
    wrong = []
    announced = evidence.of(ANNOUNCE)
    for flag, acts in evidence.of(SATISFY).items():
        last = max((a for a in acts if a.ok), key=_order, default=None)
        if last is None or flag not in evidence.kept:
            continue
        later = [a for a in announced.get(flag, ()) if a.possible and a.returned > last.invoked]
        if not later and evidence.kept[flag] != last.token:
            wrong.append(last)
    return wrong


CHECKS = (
    false_holders,
    token_back,
    held_twice_in_time,
    held_unknowingly,
    woken_falsely,
    never_woken,
    satisfied_lost,
)


_invoked, _returned = operator.attrgetter("invoked"), operator.attrgetter("returned")


def _order(act: Act) -> tuple[int, float]:
    return act.token or 0, act.returned


def _token(act: Act) -> int:
    assert act.token is not None
    return act.token


def _higher(one: Act, two: Act) -> Act:
    return max(one, two, key=_token)


def _awaits(evidence: FlagEvidence) -> Iterator[Act]:
    return (act for act in evidence.acts if act.op == AWAIT)


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
    ends = evidence.of(SATISFY, RENEW, RELEASE)
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
    ended = min((a.invoked for a in meanwhile if a.op in (SATISFY, RELEASE)), default=math.inf)
    again = [a for a in meanwhile if a.op in (ANNOUNCE, RENEW)]
    if hold.told.get("left") is None and all(a.asked.get("ttl") is None for a in again):
        return ended
    if shifted or again or hold.told.get("renewed"):
        return 0.0
    return min(ended, hold.invoked + float(hold.told["left"]) * _NS)


def _may_have_been(act: Act, evidence: FlagEvidence) -> bool:
    # A leap of the clock makes the server forget requests: the repeat of one that had worked fails.
    return act.possible or (
        evidence.shifted and act.phase == FAIL and act.told.get("error") == "NotHolder"
    )


class _Takes:
    """The announcements of a flag that certainly ended what came before them."""

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
    """The announcements of a flag that may have ended its being satisfied."""

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
