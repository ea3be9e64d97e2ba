"""The checks that judge workers see each fault there is, and none in a sound history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torture.history import FAIL, INVOKE, OK, UNKNOWN, HistoryEntry
from tests.torture.verdict import found_by
from tests.torture.work import checks
from tests.torture.work.checks import CHECKS, BuriedTask, LoggedRow, TaskEvent, WorkEvidence
from tests.torture.work.tasks import ACK, LIFE, PUBLISH, RUN

BEGIN, DONE, FAILED = (RUN, INVOKE), (RUN, OK), (RUN, FAIL)
ASKED, ACCEPTED, REFUSED = (ACK, INVOKE), (ACK, OK), (ACK, FAIL)


def told(*lines: tuple[Any, ...]) -> list[TaskEvent]:
    """Return events from (when, who, what, task) and, if it is not the first, the attempt."""
    return [
        TaskEvent(at, who, *what, task, attempt[0] if attempt else 1, f"id {task}")
        for at, who, what, task, *attempt in sorted(lines, key=lambda line: line[0])
    ]


BY_A = [(1, "a", BEGIN, 1), (2, "a", DONE, 1), (3, "a", ASKED, 1), (4, "a", ACCEPTED, 1)]
BURIED = BuriedTask(2, "id 2", 4)
LOGGED = LoggedRow("id 1", 1)


def story(lines: list[tuple[Any, ...]], **changes: Any) -> WorkEvidence:
    """Return a story of two tasks, of which 2 is poison and was buried."""
    sound = WorkEvidence(frozenset({1, 2}), frozenset(), frozenset({2}), 4, told(*lines), [BURIED])
    return sound._replace(**changes)


def violations(found: WorkEvidence) -> set[str]:
    return set(found_by(found, CHECKS))


def test_a_sound_history_has_no_violation() -> None:
    taken_over = [
        *((1, "a", BEGIN, 1), (4, "b", BEGIN, 1, 2), (5, "a", DONE, 1), (6, "a", ASKED, 1)),
        *((7, "a", REFUSED, 1), (8, "b", DONE, 1, 2), (9, "b", ASKED, 1, 2)),
        *((10, "b", ACCEPTED, 1, 2), (11, "a", BEGIN, 2)),
    ]
    former_owner_late = [
        *((1, "b", BEGIN, 1, 2), (2, "a", BEGIN, 1), (3, "b", ASKED, 1, 2)),
        *((4, "b", ACCEPTED, 1, 2), (5, "b", DONE, 1, 2)),
    ]

    assert violations(story(BY_A)) == set()
    assert violations(story(BY_A, logged=[LOGGED, LOGGED._replace(attempt=2)])) == set()
    assert violations(story([*BY_A, (5, "b", BEGIN, 2)], ordered={"key": [1, 2]})) == set()
    assert violations(story(taken_over)) == set()
    assert violations(story(former_owner_late)) == set()
    assert checks.runs_more_than_once(story(taken_over)) == 1


@pytest.mark.parametrize(
    ("lines", "changes", "found"),
    [
        ([], {}, {"lost"}),
        (BY_A[:1], {}, {"lost"}),
        (BY_A, {"letters": []}, {"lost", "poison_not_buried_once"}),
        (BY_A, {"letters": [BURIED, BURIED]}, {"poison_not_buried_once"}),
        (BY_A, {"letters": [BURIED, BuriedTask(1, "id 1", 4)]}, {"innocents_buried"}),
        (BY_A, {"letters": [BURIED, BuriedTask(-1, "", 0)]}, {"innocents_buried"}),
        (BY_A, {"letters": [BURIED._replace(attempts=3)]}, {"poison_beyond_its_attempts"}),
        ([*BY_A, *[(t, "b", BEGIN, 2) for t in range(5)]], {}, {"poison_beyond_its_attempts"}),
        # b had taken the task over, and begun it, when a asked
        ([*BY_A[:2], (2, "b", BEGIN, 1, 2), *BY_A[2:]], {}, {"stale_accepted"}),
        (
            [*BY_A, (5, "b", BEGIN, 1), (6, "b", ASKED, 1), (7, "b", ACCEPTED, 1)],
            {},
            {"accepted_twice"},
        ),
        (BY_A, {"letters": [BURIED, BURIED._replace(name="id 3")]}, {"published_twice"}),
        ([*BY_A, (9, "a", BEGIN, 3)], {}, {"invented"}),
        ([*BY_A, (1, "b", BEGIN, 3)], {"ordered": {"key": [1, 2, 3]}}, {"invented"}),
        ([*BY_A, (1, "b", BEGIN, 2)], {"ordered": {"key": [1, 2]}}, {"out_of_order"}),
        ([(9, "b", BEGIN, 2)], {"ordered": {"key": [1, 2]}}, {"out_of_order", "lost"}),
        ([*BY_A, (5, "b", BEGIN, 2)], {"logged": [LOGGED]}, {"attempts_unlogged"}),
        (
            [(0, "b", BEGIN, 1), *BY_A],
            {"logged": [LOGGED._replace(attempt=2)]},
            {"attempts_unlogged"},
        ),
        (BY_A, {"logged": [LOGGED, LOGGED]}, {"attempts_logged_twice"}),
    ],
)
def test_each_fault_is_found(lines: Any, changes: Any, found: set[str]) -> None:
    assert found <= violations(story(lines, **changes))


DIED_IN_THREE = [(1, "a.1", BEGIN, 1), (2, "b.1", BEGIN, 1, 2), (3, "a.2", BEGIN, 1, 3)]
INNOCENT_BURIED = [BURIED, BuriedTask(1, "id 1", 4)]
LATER = 10_000_000_000


@pytest.mark.parametrize(
    "fourth",
    [
        [(4, "b.2", BEGIN, 1, 4)],
        [(4, "b.2", BEGIN, 1, 4), (5, "b.2", FAILED, 1, 4), (LATER, "b.2", BEGIN, 2)],
        [(4, "b.2", BEGIN, 1, 4), (5, "b.2", DONE, 1, 4), (6, "b.2", ASKED, 1, 4)],
        [
            *((4, "b.2", BEGIN, 1, 4), (5, "b.2", DONE, 1, 4), (6, "b.2", ASKED, 1, 4)),
            *((7, "b.2", REFUSED, 1, 4), (LATER, "b.2", BEGIN, 2)),
        ],
        [(4, "b.2", BEGIN, 1, 4), (5, "b.2", DONE, 1, 4)],
    ],
    ids=["died", "failed", "died while it asked", "was taken over", "died before its batch's end"],
)
def test_an_innocent_whose_every_attempt_was_in_vain_is_rightly_buried(fourth: Any) -> None:
    found = story([*DIED_IN_THREE, *fourth], letters=INNOCENT_BURIED)

    assert violations(found) == set()
    assert checks.unlucky(found) == {1}


@pytest.mark.parametrize(
    "fourth",
    [
        [],
        [
            *((4, "b.2", BEGIN, 1, 4), (5, "b.2", DONE, 1, 4), (6, "b.2", ASKED, 1, 4)),
            (7, "b.2", ACCEPTED, 1, 4),
        ],
        [(4, "b.2", BEGIN, 1, 4), (5, "b.2", DONE, 1, 4), (LATER, "b.2", BEGIN, 2)],
    ],
    ids=["had another", "was acknowledged", "was done by one that lived on"],
)
def test_an_innocent_with_an_attempt_that_was_not_in_vain_is_wrongly_buried(fourth: Any) -> None:
    found = story([*DIED_IN_THREE, *fourth], letters=INNOCENT_BURIED)

    assert "innocents_buried" in violations(found)


def test_an_attempt_that_never_began_is_excused_by_a_mishap_of_its_own() -> None:
    found = story(DIED_IN_THREE, letters=INNOCENT_BURIED)
    assert checks.attempts_cut_off(found) == {1: {4}}

    assert violations(found._replace(mishaps=2)) == set()
    assert "innocents_buried" in violations(found._replace(mishaps=1))


def test_what_was_done_by_one_that_lived_on_is_excused_by_a_mishap_unless_it_was_accepted() -> None:
    lived_on = [(4, "b.2", BEGIN, 1, 4), (5, "b.2", DONE, 1, 4), (LATER, "b.2", BEGIN, 2)]
    accepted = [(6, "b.2", ASKED, 1, 4), (7, "b.2", ACCEPTED, 1, 4)]

    found = story([*DIED_IN_THREE, *lived_on], letters=INNOCENT_BURIED, mishaps=9)
    assert violations(found) == set()
    found = story([*DIED_IN_THREE, *lived_on, *accepted], letters=INNOCENT_BURIED, mishaps=9)
    assert "innocents_buried" in violations(found)


def test_an_innocent_that_hardly_ever_began_is_wrongly_buried() -> None:
    found = story(DIED_IN_THREE[:1], letters=INNOCENT_BURIED, mishaps=100)

    assert "innocents_buried" in violations(found)


def publications(*lines: tuple[Any, ...]) -> list[HistoryEntry]:
    return [
        HistoryEntry(at, "publisher", PUBLISH, phase, {"n": number, **of})
        for at, (phase, number, of) in enumerate(lines)
    ]


def test_what_was_accepted_refused_or_left_in_doubt_is_told_apart() -> None:
    found = checks.published(
        publications(
            *((INVOKE, 0, {"first": 0, "last": 1}), (FAIL, 0, {})),
            *((INVOKE, 0, {"first": 0, "last": 1}), (OK, 0, {"order": None})),
            *((INVOKE, 1, {"first": 2, "last": 2}), (OK, 1, {"order": "a"})),
            *((INVOKE, 2, {"first": 3, "last": 4}), (UNKNOWN, 2, {})),
            *((INVOKE, 3, {"first": 5, "last": 5}), (FAIL, 3, {})),
            # Never answered, since it died: it may have been done, though it was refused before.
            *((INVOKE, 4, {"first": 6, "last": 6}), (FAIL, 4, {})),
            (INVOKE, 4, {"first": 6, "last": 6}),
        )
    )

    assert (found.accepted, found.unsure) == ({0, 1, 2}, {3, 4, 6})
    assert found.ordered == {"a": [2]}


def test_processes_that_had_one_role_after_the_other_are_told_apart() -> None:
    of = {"i": 1, "attempt": 1, "id": "x"}
    found = checks.events(
        [
            *(HistoryEntry(1, "a", LIFE, INVOKE, {}), HistoryEntry(2, "a", RUN, INVOKE, of)),
            *(HistoryEntry(5, "a", RUN, OK, of), HistoryEntry(4, "a", LIFE, INVOKE, {})),
        ]
    )

    assert found == [
        TaskEvent(2, "a.1", RUN, INVOKE, 1, 1, "x"),
        TaskEvent(5, "a.2", RUN, OK, 1, 1, "x"),
    ]
