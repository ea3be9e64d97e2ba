"""Checks of leases: each returns what is wrong. Overlap is decided by `overlap`, not by the library."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.torture.agents.agent import DROP, GIVE, LEASE, RENEW
from tests.torture.agents.evidence import AgentAct, AgentEvidence
from tests.torture.agents.overlap import overlap

_NS = 1_000_000_000
# How long a request whose sender has died, or given up, may still be on its way, in seconds.
_LATE = 15.0
# What clocks of two processes may differ in how fast they go, in seconds.
_SLACK = 0.25


class LeaseSpan(NamedTuple):
    """A time, in ns, in which an agent certainly held a lease of a pattern."""

    agent: str
    pattern: str
    begin: float
    end: float
    act: AgentAct


def held_twice(evidence: AgentEvidence) -> list[tuple[LeaseSpan, LeaseSpan]]:
    """Leases of two agents that overlap, at the same time."""
    wrong = []
    held: list[LeaseSpan] = []
    for span in sorted(_spans(evidence), key=lambda span: span.begin):
        held = [one for one in held if one.end > span.begin]
        wrong += [
            (one, span)
            for one in held
            if one.agent != span.agent and overlap(one.pattern, span.pattern)
        ]
        held.append(span)
    return wrong


def token_back(evidence: AgentEvidence) -> list[tuple[AgentAct, AgentAct]]:
    """Fencing tokens that were given twice, or after a higher one."""
    wrong = []
    given: dict[int, AgentAct] = {}
    grants = []
    for act in evidence.of(LEASE):
        new = [*_granted(act)]
        for token in new:
            if token in given:
                wrong.append((given[token], act))
            given[token] = act
        if new:
            grants.append((act, min(new), max(new)))
    # The highest token that had been acknowledged by the time of an invocation.
    returned = sorted(grants, key=lambda grant: grant[0].returned)
    highest, by, at = 0, None, 0
    for act, low, _ in grants:
        while at < len(returned) and returned[at][0].returned < act.invoked:
            if returned[at][2] > highest:
                by, _, highest = returned[at]
            at += 1
        if by is not None and low < highest:
            wrong.append((by, act))
    return wrong


def refused_falsely(evidence: AgentEvidence) -> list[object]:
    """Refusals for leases that do not overlap, or were over; and such leases that were listed last."""
    wrong: list[object] = []
    takes = _takes(evidence)
    drops: dict[str, list[AgentAct]] = defaultdict(list)
    for act in evidence.of(DROP, GIVE):
        drops[act.who].append(act)

    def known(agent: str, pattern: str, since: int, until: float) -> bool:
        if evidence.shifted(since, until):
            return True
        return any(
            act.invoked < until and not _over(act, pattern, since, drops[agent], evidence)
            for act in takes[agent]
            if _takes_it(act, pattern)
        )

    for act in evidence.of(LEASE):
        if "by" not in act.said:
            continue
        agent, pattern = act.said["by"], act.said["of"]
        if (
            agent == act.who
            or not overlap(pattern, act.said["path"])
            or not known(agent, pattern, act.invoked, act.returned)
        ):
            wrong.append(act)
    for agent, pattern in evidence.left:
        if not known(agent, pattern, *evidence.looked):
            wrong.append((agent, pattern))
    return wrong


def _granted(act: AgentAct) -> Iterator[int]:
    if act.ok:
        for token, renewed in zip(act.said["g"].values(), act.said["r"], strict=True):
            if not renewed:
                yield int(token)


def _patterns(act: AgentAct) -> Mapping[str, str]:
    """Return the tokens of a lease, a renewal or an end, by pattern."""
    found: Mapping[str, str] = act.said.get("g") or act.asked.get("g") or {}
    return found


def _takes_it(act: AgentAct, pattern: str) -> bool:
    """Tell whether an act may have taken or renewed a lease of a pattern."""
    if act.ok or act.op != LEASE:
        return pattern in _patterns(act)
    # The root, to which patterns are relative, may lie above.
    return any(f"/{pattern}".endswith(f"/{one}") for one in act.asked["p"])


def _takes(evidence: AgentEvidence) -> dict[str, list[AgentAct]]:
    found: dict[str, list[AgentAct]] = defaultdict(list)
    for act in evidence.of(LEASE, RENEW, GIVE):
        if act.possible:
            found[act.asked["to"] if act.op == GIVE else act.who].append(act)
    return found


def _spans(evidence: AgentEvidence) -> Iterator[LeaseSpan]:
    by_agent: dict[str, list[AgentAct]] = defaultdict(list)
    for act in evidence.of(LEASE, RENEW, GIVE, DROP):
        by_agent[act.who].append(act)
    for give in evidence.of(GIVE):
        if give.ok:
            yield from _given(give, by_agent[give.asked["to"]], evidence)
    for agent, acts in by_agent.items():
        for number, act in enumerate(acts):
            if act.op in (DROP, GIVE) or not act.ok or _may_still_come(acts[:number], act):
                continue
            expires = act.invoked + (act.asked["ttl"] - _SLACK) * _NS
            for pattern in _patterns(act):
                later = (one.invoked for one in acts[number + 1 :] if _touches(one, pattern))
                end = min(expires, next(later, math.inf))
                if end > act.returned and not evidence.shifted(act.invoked, end):
                    yield LeaseSpan(agent, pattern, act.returned, end, act)


def _given(
    give: AgentAct, acts: Sequence[AgentAct], evidence: AgentEvidence
) -> Iterator[LeaseSpan]:
    """Yield how long a recipient, who did this, certainly held what it was given."""
    before = [one for one in acts if one.invoked < give.invoked]
    if _may_still_come(before, give):
        return
    expires = give.asked["b"] + (give.asked["ttl"] - _SLACK) * _NS
    for pattern in _patterns(give):
        # Also what was asked before, and answered since.
        since = (one for one in acts if one.returned > give.invoked)
        ends = (one.invoked for one in since if _touches(one, pattern))
        end = min(expires, next(ends, math.inf))
        if end > give.returned and not evidence.shifted(give.asked["b"], end):
            yield LeaseSpan(give.asked["to"], pattern, give.returned, end, give)


def _touches(act: AgentAct, pattern: str) -> bool:
    """Tell whether an act of the holder may end or shorten its lease of a pattern."""
    # What can be dropped is, even if the answer is that something cannot.
    if act.op == DROP:
        return act.asked["g"] is None or pattern in act.asked["g"]
    return act.possible and (pattern in _patterns(act) or not act.ok)


def _may_still_come(before: Sequence[AgentAct], act: AgentAct) -> bool:
    """Tell whether an earlier request of the agent, which was not answered, may change the lease later."""
    for one in reversed(before):
        if one.invoked < act.invoked - _LATE * _NS:
            return False
        if not one.ok and one.possible:
            return True
    return False


def _over(
    act: AgentAct, pattern: str, since: int, drops: Sequence[AgentAct], evidence: AgentEvidence
) -> bool:
    """Tell whether what an act took, or renewed, was certainly over at a time."""
    taken = act.returned
    if math.isinf(taken):
        began = (at for at in evidence.lives.get(act.who, ()) if at > act.invoked)
        taken = next(began, math.inf)
    if not act.ok:
        taken += _LATE * _NS
    # What was given keeps the end that it had.
    if evidence.shifted(act.asked.get("b", act.invoked), taken):
        return False
    if taken + (act.asked["ttl"] + _SLACK) * _NS < since:
        return True
    return act.ok and any(
        drop.ok
        and drop.invoked >= act.returned
        and drop.returned <= since
        and (drop.asked["g"] is None or pattern in drop.asked["g"])
        for drop in drops
    )
