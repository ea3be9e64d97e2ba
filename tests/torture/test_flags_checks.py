"""Each check of the flags' torture finds what it is for, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.torture.flags import checks
from tests.torture.flags.checks import CHECKS
from tests.torture.flags.evidence import Act, FlagEvidence
from tests.torture.history import FAIL, OK, UNKNOWN
from tests.torture.verdict import found_by

S = 1_000_000_000
ANN, BOB, CEM = "ann", "bob", "cem"


def act(
    who: str, op: str, invoked: float, returned: float = math.inf, phase: str = OK, **of: Any
) -> Act:
    """Something that was done, in seconds; `told` is what the outcome brought."""
    phase = "pending" if math.isinf(returned) else phase
    told = of.pop("told", {})
    at = returned if math.isinf(returned) else round(returned * S)
    return Act(who, op, round(invoked * S), at, phase, {"flag": "f", **of}, told)


def announce(
    who: str, invoked: float, returned: float = math.inf, token: int | None = None, **of: Any
) -> Act:
    told = {"token": token, "left": of.get("ttl"), "renewed": of.pop("renewed", False)}
    asked = {"ttl": None, "force": False, "hold": round(invoked * S), **of}
    return act(who, "announce", invoked, returned, told=told, **asked)


def await_(who: str, invoked: float, returned: float, phase: str = OK, **of: Any) -> Act:
    asked = {"flags": ["f"], "until": "satisfied", "any": False, "fresh": False, **of}
    return act(who, "await", invoked, returned, phase, told={"flags": asked["flags"]}, **asked)


def satisfy(who: str, invoked: float, returned: float, token: int, phase: str = OK) -> Act:
    return act(who, "satisfy", invoked, returned, phase, token=token)


def fail(who: str, invoked: float, returned: float, token: int, phase: str = OK) -> Act:
    return act(who, "fail", invoked, returned, phase, token=token)


def told_of_failure(who: str, invoked: float, returned: float, **of: Any) -> Act:
    """An awaiter that ended with `FlagFailed`."""
    waited = await_(who, invoked, returned, FAIL, **of)
    return waited._replace(told={"error": "FlagFailed"})


def found(*acts: Act, **of: Any) -> set[str]:
    """Return the names of the checks that find something in these acts."""
    return set(found_by(FlagEvidence(acts, **of), CHECKS))


SOUND = (
    announce(ANN, 1, 2, 1),
    act(ANN, "write", 2, 2.1, token=1),
    await_(BOB, 1, 3.5),
    act(ANN, "write", 2.5, 2.6, token=1),
    satisfy(ANN, 3, 4, 1),
    announce(BOB, 3.6, 5, 2, ttl=1.0),
    act(BOB, "renew", 5.1, 5.2, token=2, ttl=1.0),
    # It is frozen, and another takes the flag.
    announce(CEM, 6, 8, 3),
    act(CEM, "write", 8.1, 8.2, token=3),
    act(BOB, "write", 8.3, 8.4, FAIL, token=2),
    act(BOB, "satisfy", 8.5, 8.6, FAIL, token=2, told={"error": "NotHolder"}),
    satisfy(CEM, 9, 10, 3),
    await_(ANN, 11, 11.1),
    announce(ANN, 12, 13, 4),
    fail(ANN, 14, 15, 4),
    told_of_failure(BOB, 12, 14.5),
    told_of_failure(CEM, 16, 16.1),
    # It is tried again, and works.
    announce(BOB, 17, 18, 5),
    satisfy(BOB, 19, 20, 5),
    await_(CEM, 17.5, 20.1),
)


def test_a_sound_story_is_found_sound() -> None:
    assert found(*SOUND, kept={"f": 5}) == set()


@pytest.mark.parametrize(
    ("acts", "name"),
    [
        pytest.param(
            [announce(ANN, 1, 3, 1, ttl=9.0), announce(BOB, 2, 4, 1, ttl=9.0)],
            "false_holders",
            id="one token for two",
        ),
        pytest.param(
            [act(ANN, "write", 1, 2, token=2), act(BOB, "write", 3, 4, token=1)],
            "false_holders",
            id="a lower token is accepted",
        ),
        pytest.param(
            [
                act(ANN, "write", 1, 2, token=None, hold=1),
                act(BOB, "write", 3, 4, token=None, hold=1),
                act(ANN, "write", 5, 6, token=None, hold=1),
            ],
            "false_holders",
            id="a write between two of another hold",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), announce(BOB, 3, 4, 2, force=True), satisfy(ANN, 5, 6, 1)],
            "false_holders",
            id="a stale hold is satisfied",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1, ttl=1.0),
                announce(BOB, 4, 5, 2),
                act(ANN, "renew", 6, 7, token=1),
            ],
            "false_holders",
            id="a stale hold is renewed",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 5, ttl=0.1), announce(BOB, 3, 4, 4, ttl=0.1)],
            "token_back",
            id="a later hold has a lower token",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), announce(BOB, 3, 4, 2)],
            "held_twice_in_time",
            id="an endless hold is taken",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1, ttl=9.0), announce(BOB, 3, 4, 2)],
            "held_twice_in_time",
            id="a hold is taken before its end",
        ),
        pytest.param(
            [announce(ANN, 1, 2), announce(BOB, 3, 4), satisfy(ANN, 5, 6, 0)],
            "held_twice_in_time",
            id="two holds without tokens",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1, renewed=True)],
            "held_unknowingly",
            id="a hold that had been refused",
        ),
        pytest.param([await_(ANN, 1, 2)], "woken_falsely", id="nobody had satisfied it"),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                satisfy(ANN, 3, 4, 1),
                announce(ANN, 5, 6, 2),
                await_(BOB, 7, 8),
            ],
            "woken_falsely",
            id="it was taken again before",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), satisfy(ANN, 3, 4, 1), await_(BOB, 7, 8, fresh=True)],
            "woken_falsely",
            id="what was before is not fresh",
        ),
        pytest.param(
            [await_(BOB, 7, 8, until="announced")], "woken_falsely", id="nobody had announced it"
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), await_(BOB, 2, 60, FAIL), satisfy(ANN, 3, 4, 1)],
            "never_woken",
            id="it waits on",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), satisfy(ANN, 3, 5, 1), await_(BOB, 4, 60, FAIL)],
            "never_woken",
            id="it came while the flag was satisfied",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), satisfy(ANN, 3, 4, 1), await_(BOB, 5, 60)],
            "never_woken",
            id="it does not see what was before",
        ),
        pytest.param(
            [
                await_(BOB, 0, 90, FAIL),
                announce(ANN, 11, 12, 1),
                satisfy(ANN, 13, 14, 1),
                announce(CEM, 15, 16, 2),
            ],
            "never_woken",
            id="it waited for long, however short the flag was satisfied",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), fail(ANN, 3, 4, 1), await_(BOB, 2.5, 4)],
            "woken_falsely",
            id="a failure is taken for a success",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                satisfy(ANN, 3, 4, 1),
                announce(ANN, 4.5, math.inf),
                fail(ANN, 5, 6, 2),
                await_(BOB, 7, 8),
            ],
            "woken_falsely",
            id="it has failed since",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), told_of_failure(BOB, 2, 3)],
            "failed_falsely",
            id="nobody had failed it",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                fail(ANN, 3, 4, 1),
                announce(ANN, 5, 6, 2),
                told_of_failure(BOB, 7, 8),
            ],
            "failed_falsely",
            id="it was announced again before",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), fail(ANN, 3, 4, 1), told_of_failure(BOB, 5, 6, fresh=True)],
            "failed_falsely",
            id="a failure from before is not fresh",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                fail(ANN, 3, 4, 1),
                told_of_failure(BOB, 3, 5, flags=["f", "g"], any=True),
            ],
            "failed_falsely",
            id="the other flag may still be satisfied",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                fail(ANN, 3, 4, 1),
                told_of_failure(BOB, 3, 5, until="announced"),
            ],
            "failed_falsely",
            id="a failure does not matter until it is announced",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), await_(BOB, 2, 60, FAIL), fail(ANN, 3, 4, 1)],
            "never_woken",
            id="it waits on after a failure",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                fail(ANN, 3, 4, 1),
                await_(BOB, 5, 60, FAIL, flags=["f", "g"]),
            ],
            "never_woken",
            id="one failure of several is enough",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), announce(BOB, 3, 4, 2, force=True), fail(ANN, 5, 6, 1)],
            "false_holders",
            id="a stale hold is failed",
        ),
    ],
)
def test_what_is_wrong_is_found(acts: Sequence[Act], name: str) -> None:
    assert found(*acts) == {name}


@pytest.mark.parametrize(
    "acts",
    [
        pytest.param(
            [announce(ANN, 1, 2, 1), announce(BOB, 3, 4, 2, force=True)], id="taken by force"
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), announce(BOB, 3, 4, 3)], id="one between them is not known"
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                announce(BOB, 3, force=True),
                announce(BOB, 5, 6, 2, renewed=True),
            ],
            id="taken by force by one who died, and came back",
        ),
        pytest.param(
            [announce(ANN, 1, ttl=0.1), announce(ANN, 2, 3, 1, renewed=True, ttl=0.1)],
            id="renewed after a death",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), satisfy(ANN, 3, 9, 1), announce(BOB, 3, 4, 2)],
            id="ended before it was acknowledged",
        ),
        pytest.param(
            [announce(ANN, 1, 5, 2, ttl=1.0), announce(BOB, 1, 2, 1, ttl=1.0)],
            id="granted at once, told later",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                act(ANN, "satisfy", 3, 4, UNKNOWN, token=1),
                await_(BOB, 2, 5),
            ],
            id="it may have been satisfied",
        ),
        pytest.param(
            [
                await_(BOB, 1, 90, FAIL),
                announce(ANN, 1, 2, 1),
                satisfy(ANN, 3, 4, 1),
                announce(CEM, 5, 6, 2),
            ],
            id="it may have looked too late",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                satisfy(ANN, 3, 4, 1),
                await_(BOB, 2, 90, FAIL, flags=["f", "g"]),
            ],
            id="the other flag was not satisfied",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                fail(ANN, 3, 4, 1),
                await_(BOB, 2, 90, FAIL, flags=["f", "g"], any=True),
            ],
            id="the other flag may still be satisfied",
        ),
        pytest.param(
            [
                announce(ANN, 1, 2, 1),
                act(ANN, "fail", 3, 4, UNKNOWN, token=1),
                told_of_failure(BOB, 2, 5),
            ],
            id="it may have failed",
        ),
        pytest.param(
            [announce(ANN, 1, 2, 1), fail(ANN, 3, 9, 1), announce(BOB, 3, 4, 2)],
            id="failed before it was acknowledged",
        ),
    ],
)
def test_what_may_be_is_not_found_wrong(acts: Sequence[Act]) -> None:
    assert found(*acts) == set()


def test_of_many_satisfactions_the_last_one_counts() -> None:
    acts = [
        one
        for number in range(50)
        for one in (
            announce(ANN, 10 * number + 1, 10 * number + 2, number + 1),
            satisfy(ANN, 10 * number + 3, 10 * number + 4, number + 1),
        )
    ]

    assert found(*acts, await_(BOB, 400, 401)) == set()
    assert found(*acts, await_(BOB, 400, 460, FAIL)) == {"never_woken"}
    assert found(*acts, await_(BOB, 400, 440, FAIL)) == set(), "the bound was not over"
    assert found(*acts, await_(BOB, 600, 660)) == {"never_woken"}
    assert found(*acts, announce(CEM, 500), await_(BOB, 600, 660, FAIL)) == set()


def test_a_clock_that_leaps_ends_a_hold_early_and_forgets_what_was_asked() -> None:
    early = (announce(ANN, 1, 2, 1, ttl=9.0), announce(BOB, 3, 4, 2))
    again = (
        act(ANN, "satisfy", 3, 4, FAIL, token=1, told={"error": "NotHolder"}),
        await_(BOB, 2, 5),
    )

    assert (found(*early), found(*early, shifted=True)) == ({"held_twice_in_time"}, set())
    assert (found(*again), found(*again, shifted=True)) == ({"woken_falsely"}, set())


@pytest.mark.parametrize("kept", [None, 2])
def test_an_acknowledged_satisfaction_must_be_there_in_the_end(kept: int | None) -> None:
    acts = (announce(ANN, 1, 2, 1), satisfy(ANN, 3, 4, 1))

    assert found(*acts, kept={"f": 1}) == set()
    assert found(*acts, kept={"f": kept}) == {"satisfied_lost"}
    assert found(*acts, announce(BOB, 3.5), kept={"f": kept}) == set()


@pytest.mark.parametrize("left", [None, 2])
def test_an_acknowledged_failure_must_be_there_in_the_end(left: int | None) -> None:
    acts = (announce(ANN, 1, 2, 1), fail(ANN, 3, 4, 1))

    assert found(*acts, failures={"f": 1}, kept={"f": None}) == set()
    assert found(*acts, failures={"f": left}, kept={"f": None}) == {"failed_lost"}
    assert found(*acts, announce(BOB, 3.5), failures={"f": left}) == set()


def test_any_flag_of_several_wakes_and_all_of_them_do() -> None:
    acts = (announce(ANN, 1, 2, 1), satisfy(ANN, 3, 4, 1))

    late = await_(BOB, 2, 90, FAIL, flags=["f", "g"], any=True)

    assert found(*acts, late) == {"never_woken"}
    assert found(*acts, late._replace(asked={**late.asked, "any": False})) == set()


def test_every_check_is_among_those_that_are_tried_here() -> None:
    wrong = {check.__name__ for check in CHECKS}
    assert wrong == {name for name in vars(checks) if name in wrong}
    assert len(wrong) == 9
