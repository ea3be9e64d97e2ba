"""A sound story of agents has nothing wrong, and each fault is found by the check that is made for it."""

from __future__ import annotations

import itertools
import math
import random
import re
from typing import Any

import pytest

from tests.torture.agents.checks import CHECKS
from tests.torture.agents.evidence import (
    AgentAct,
    AgentCollector,
    AgentEvidence,
    InboxLook,
    Reading,
)
from tests.torture.agents.overlap import overlap
from tests.torture.agents.plan import patterns
from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.verdict import found_by

S = 1_000_000_000


def act(who: str, op: str, begin: float, end: float, phase: str = OK, **of: Any) -> AgentAct:
    """Return an act between two times in seconds."""
    returned = end if math.isinf(end) else int(end * S)
    return AgentAct(who, op, int(begin * S), returned, phase, of, of)


def tell(number: int, **of: Any) -> AgentAct:
    """Ada sends bob a message at a time."""
    told = {"n": number, "t": f"ada says {number}.1", "to": "bob", "i": f"{number}-0@bob"}
    phase = of.pop("phase", OK)
    return act("ada", "tell", number, number + 0.1, phase, **told, **of)


def read(number: int, at: float) -> Reading:
    return Reading("bob", f"{number}-0@bob", "ada", "", int(at * S), int(at * S))


def look(at: float, heard: int, *beyond: int) -> InboxLook:
    return InboxLook("bob", int(at * S), (heard, 0), frozenset((one, 0) for one in beyond))


def receipt(number: int, at: float, state: str, answered: str | None = None) -> AgentAct:
    return act("ada", "receipt", at, at + 0.1, i=f"{number}-0@bob", s=state, a=answered)


def answer(number: int, at: float, of: str) -> AgentAct:
    return act("bob", "reply", at, at + 0.1, i=f"{number}-0@bob", a=of)


# Ada tells bob 1, 2 and 3, which he reads; he answers 2.
ACTS = [tell(1), tell(2), tell(3), answer(2, 6, "6-0@ada"), receipt(1, 7, "read")]
ACTS += [receipt(2, 7.2, "answered", "6-0@ada"), receipt(3, 7.4, "read")]
BOB = {(number, 0): {"message": f"ada says {number}.1", "agent_id": "ada"} for number in (1, 2, 3)}
ADA = {(6, 0): {"message": "yes", "agent_id": "bob", "reply_to": "2-0@bob"}}


def story(*more: AgentAct, without: int | None = None, **changes: Any) -> AgentEvidence:
    acts = [one for number, one in enumerate(ACTS) if number != without]
    sound = AgentEvidence(
        [*acts, *more],
        [read(1, 5.0), read(2, 5.1), read(3, 5.2)],
        [look(4.5, 0), look(5.5, 3)],
        {"bob": BOB, "ada": ADA},
        3,
    )
    return sound._replace(**changes)


def wrong(of: AgentEvidence) -> set[str]:
    return set(found_by(of, CHECKS))


def test_in_a_sound_story_nothing_is_wrong() -> None:
    assert wrong(story()) == set()


@pytest.mark.parametrize(
    ("found", "check"),
    [
        (story(readings=[read(1, 5.0), read(2, 5.1)], looks=[], without=6), "lost"),
        (story(inboxes={"bob": {**BOB, (4, 0): BOB[3, 0]}, "ada": ADA}), "doubled"),
        (story(tell(4, phase=FAIL), inboxes={"bob": {**BOB, (4, 0): {"message": "ada says 4.1"}}}),
         "refused_and_there"),
        (story(looks=[look(4.5, 1), look(5.5, 3)]), "passed_unread"),
        (story(looks=[look(4.5, 0, 2), look(5.5, 3)]), "passed_unread"),
        (story(readings=[*story().readings, read(3, 5.7)]), "read_again"),
        (story(bound=2), "overfull"),
        (story(tell(4, phase=FAIL, error="InboxFull"), bound=4), "refused_early"),
        (story(tell(8, phase=FAIL, error="InboxFull")), "refused_early"),
        (story(inboxes={"bob": BOB, "ada": {**ADA, (8, 0): ADA[6, 0]}}), "answered_twice"),
        (story(answer(2, 8, "8-0@ada"), without=5), "answered_twice"),
        (story(receipt(1, 4.0, "read")), "claimed_early"),
        (story(receipt(2, 5.5, "answered", "6-0@ada")), "claimed_early"),
        (story(receipt(1, 8, "sent")), "untrue_in_the_end"),
        (story(receipt(2, 8, "read")), "untrue_in_the_end"),
        (story(act("ada", "receipt", 8, 9, FAIL, i="1-0@bob", error="NotFound")),
         "untrue_in_the_end"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_messages_is_found(found: AgentEvidence, check: str) -> None:
    assert check in wrong(found)


@pytest.mark.parametrize(
    "found",
    [
        # What was not acknowledged need not be there, and may be.
        story(tell(4, phase=UNKNOWN)),
        story(tell(4, phase="pending"), inboxes={"bob": {**BOB, (4, 0): {}}, "ada": ADA}),
        # What is read out of order counts as read beyond the position.
        story(readings=[read(3, 4.0), *story().readings[:2]], looks=[look(4.5, 0, 3)]),
        # A reader that dies before its page counts as read gets it again.
        story(readings=[read(1, 4.2), *story().readings]),
        story(tell(4, phase=FAIL, error="InboxFull")),
        story(answer(2, 8, "6-0@ada")),
    ],
)
def test_what_may_happen_is_not_taken_for_a_fault(found: AgentEvidence) -> None:
    assert wrong(found) == set()


# -- leases --


def lease(
    who: str, begin: float, pattern: str, token: int, ttl: float = 5.0, **of: Any
) -> AgentAct:
    said = {"g": {pattern: str(token)}, "r": [of.pop("renewed", False)], "p": [pattern]}
    return act(who, "lease", begin, begin + 0.1, of.pop("phase", OK), ttl=ttl, **said, **of)


def drop(who: str, begin: float, *patterns: str, phase: str = OK) -> AgentAct:
    of = dict.fromkeys(patterns, "1") if patterns else None
    return act(who, "drop", begin, begin + 0.1, phase, g=of)


def refused(who: str, begin: float, pattern: str, by: str, path: str = "src/a") -> AgentAct:
    of = {"p": [path], "ttl": 1.0, "by": by, "of": pattern, "path": path}
    return act(who, "lease", begin, begin + 0.1, FAIL, **of)


def give(who: str, begin: float, to: str, pattern: str, ttl: float = 5.0) -> AgentAct:
    """Give a lease that was taken just before."""
    of = {"t": f"{who} gives", "to": to, "i": f"{int(begin)}-0@{to}", "g": {pattern: "1"}}
    return act(who, "give", begin, begin + 0.1, **of, ttl=ttl, b=int((begin - 1) * S))


def leases(*acts: AgentAct, **changes: Any) -> AgentEvidence:
    return AgentEvidence(acts, [], [], {}, 3)._replace(**changes)


GIVEN = give("ada", 2, "bob", "a")
READ = Reading("bob", "2-0@bob", "ada", "", 9 * S, 9 * S)


@pytest.mark.parametrize(
    "found",
    [
        leases(lease("ada", 1, "src/**", 1), lease("bob", 7, "src/a", 2)),
        leases(
            *(lease("ada", 1, "src/**", 1), drop("ada", 2, "src/**"), lease("bob", 3, "src/a", 2))
        ),
        leases(lease("ada", 1, "src/*", 1), lease("bob", 2, "docs/*", 2)),
        # It may have ended before the answer came.
        leases(lease("ada", 1, "a", 1), drop("ada", 2, phase=UNKNOWN), lease("bob", 3, "a", 2)),
        leases(lease("ada", 1, "a", 1), refused("bob", 2, "a", "ada", "?")),
        leases(
            *(lease("ada", 1, "a", 1), GIVEN, drop("bob", 3, "a")),
            *(lease("cid", 4, "a", 2), refused("ada", 2.5, "a", "bob", "a")),
            readings=[READ],
        ),
        # Its end was set while the clock was wrong.
        leases(
            *(lease("ada", 1, "a", 1), GIVEN, refused("cid", 8, "a", "bob", "a")),
            readings=[READ],
            shifts=[(S, int(1.5 * S))],
        ),
        # Of a process that died, nobody knows whether it has leased.
        leases(
            act("ada", "lease", 1, math.inf, "pending", p=["a"], ttl=1.0),
            refused("bob", 9, "a", "ada", "?"),
        ),
        leases(lease("ada", 1, "a", 1), refused("bob", 9, "a", "ada", "a"), shifts=[(0, 2 * S)]),
    ],
)
def test_leases_one_after_the_other_or_of_other_paths_are_sound(found: AgentEvidence) -> None:
    assert wrong(found) == set()


@pytest.mark.parametrize(
    ("found", "check"),
    [
        (leases(lease("ada", 1, "src/**", 1), lease("bob", 2, "*/a", 2)), "held_twice"),
        (leases(lease("ada", 1, "a", 1), GIVEN, lease("cid", 3, "?", 2), readings=[READ]),
         "held_twice"),
        (leases(lease("ada", 1, "a", 1), GIVEN, refused("cid", 3, "a", "ada", "a"), readings=[READ]),
         "refused_falsely"),
        (leases(lease("ada", 1, "a", 2), lease("bob", 9, "b", 2)), "token_back"),
        (leases(lease("ada", 1, "a", 2), lease("bob", 9, "b", 1)), "token_back"),
        # Over by its TTL, dropped, never taken, and of other paths.
        (leases(lease("ada", 1, "a", 1), refused("bob", 9, "a", "ada", "a")), "refused_falsely"),
        (leases(lease("ada", 1, "a", 1), drop("ada", 2, "a"), refused("bob", 3, "a", "ada", "a")),
         "refused_falsely"),
        (leases(refused("bob", 3, "a", "ada", "a")), "refused_falsely"),
        (leases(lease("ada", 1, "a", 1), refused("bob", 2, "a", "ada", "b")), "refused_falsely"),
        (leases(lease("ada", 1, "a", 1), left=[("ada", "a")], looked=(9 * S, 10 * S)),
         "refused_falsely"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_leases_is_found(found: AgentEvidence, check: str) -> None:
    assert wrong(found) == {check}


def test_overlap_is_what_an_enumeration_of_paths_says() -> None:
    names = ["a", "b", "ab", "ba", "aa", "bb", "aba", "c"]
    paths = ["/".join(x) for n in (1, 2, 3) for x in itertools.product(names, repeat=n)]

    def matching(pattern: str) -> frozenset[str]:
        regex = re.escape(f"/{pattern}").replace(r"/\*\*", "(/[^/]+)*")
        regex = regex.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        return frozenset(path for path in paths if re.fullmatch(regex, f"/{path}"))

    chance = random.Random(7)
    known = {one for _ in range(60) for one in patterns(chance, "/x").values()}
    matched = {one: matching(one) for one in known if one.count("/") < 3}

    differing = [
        (one, two)
        for one, two in itertools.combinations(matched, 2)
        if overlap(one, two) != bool(matched[one] & matched[two])
    ]
    assert differing == []


def test_an_operation_without_an_outcome_was_cut_off_by_a_death() -> None:
    collector = AgentCollector()
    for entry in (
        HistoryEntry(1, "ada", "life", OK, {}),
        HistoryEntry(2, "ada", "tell", INVOKE, {"n": 0, "t": "x", "to": "bob"}),
        HistoryEntry(3, "ada", "life", OK, {}),
        HistoryEntry(4, "ada", "drop", INVOKE, {"g": None}),
    ):
        collector.saw(entry)
    collector.finish()

    assert [(one.op, one.phase, one.returned) for one in collector.acts] == [
        ("tell", "pending", math.inf),
        ("drop", "pending", math.inf),
    ]
    assert collector.lives == {"ada": [1, 3]}
